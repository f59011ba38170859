"""The program's entry: Ctrl-C while it is being imported."""

from __future__ import annotations

import subprocess
import sys

INTERRUPTED_IMPORT = """
import sys
from importlib.abc import MetaPathFinder

class Interrupting(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "gamaneh.cli.serve":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
from gamaneh.cli.entry import main
main()
"""


def test_interrupt_during_imports_shows_one_line_and_no_traceback() -> None:
    result = subprocess.run([sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (130, "gamaneh: interrupted\n")
