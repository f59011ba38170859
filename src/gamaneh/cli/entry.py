"""Where the program `gamaneh` begins: a module that imports nothing that takes long."""

import os
import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it with one line and exit code 130, also while it is being imported."""
    try:
        from gamaneh.cli.main import main as run

        run()
    except KeyboardInterrupt:
        print("gamaneh: interrupted", file=sys.stderr, flush=True)
        os._exit(130)  # libraries that are half imported must not be asked to clean up
