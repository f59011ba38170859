"""`gamaneh bench` against llama.cpp's own server, by the commands of docs/bench.md; `make llama` fetches the server."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gamaneh.bench.result import read_run
from gamaneh.cli.main import app

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-llama" / "bin" / "python"
PORTS = ("8181", "8182")

pytestmark = pytest.mark.skipif(not PYTHON.exists(), reason="no llama.cpp here: `make llama` fetches it")


def documented() -> list[list[str]]:
    """The commands of the page, each as words: two servers, then the measurement."""
    page = (ROOT / "docs" / "bench.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```text llama\.sh\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    return [shlex.split(line) for line in block.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]


def free_port() -> str:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return str(bound.getsockname()[1])


@contextmanager
def serving(arguments: list[str]) -> Iterator[None]:
    """One of the servers, until it is no longer needed."""
    process = subprocess.Popen(
        [PYTHON, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith(b"http://127.0.0.1:"), "the server did not start"
        yield
    finally:
        process.communicate(timeout=60)


def test_the_documented_comparison_with_llama_cpp_runs(model_file: Path, tmp_path: Path) -> None:
    ports = dict(zip(PORTS, (free_port(), free_port()), strict=True))

    def filled(words: list[str]) -> list[str]:
        text = (
            "\0".join(words).replace("MODEL.gguf", str(model_file)).replace("llama.json", str(tmp_path / "llama.json"))
        )
        for port, free in ports.items():
            text = text.replace(port, free)
        return text.split("\0")

    plain, speculative, bench = map(filled, documented())
    assert (plain[-1], speculative[-1], bench[0]) == ("&", "&", "gamaneh")
    with ExitStack() as servers:
        for command in (plain, speculative):
            servers.enter_context(serving([*command[1:-1], "--threads", "1"]))
        result = CliRunner().invoke(
            app, [*bench[1:], "--limit", "2", "--rounds", "1", "-n", "8"], catch_exceptions=False
        )
    assert result.exit_code == 0, result.stdout + result.stderr
    run = read_run(tmp_path / "llama.json")
    assert run.complete
    assert (run.plain.dialect, run.speculative.dialect) == ("llama.cpp", "llama.cpp")
    whole = run.points[0].whole
    assert whole.plain.output_tokens > 0 and whole.speculative.output_tokens > 0
    assert whole.speculative.speculation is not None and whole.speculative.speculation.drafted is not None
    assert whole.plain.split.prefill is not None and whole.plain.split.prefill > 0
    assert run.equality is not None and run.equality.compared == 2
