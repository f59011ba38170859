"""Every example of the documentation runs as it is written, over tiny models that bear the catalogue's names."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from markdown import DOCUMENTS, ROOT, Block, blocks
from tiny_catalogue import install
from typer.testing import CliRunner, Result

from gamaneh.cli.main import app
from gamaneh.server import lifecycle

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = frozenset({"text", "json"})
"""Languages of blocks to look at, not to run."""

TRANSLATED = ROOT / "README.fa.md"
"""Its examples are those of README.md, which another test makes sure of."""

WITH_EXAMPLES = [path for path in DOCUMENTS if path != TRANSLATED and blocks(path)]


@pytest.fixture(autouse=True)
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, and a catalogue of tiny models."""
    install(tmp_path / "models", monkeypatch)
    folder = tmp_path / "desk"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(autouse=True)
def servers_end_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers are set up, with their options and their model, but answer nobody."""
    monkeypatch.setattr(lifecycle, "bind", lambda host, port: None)
    monkeypatch.setattr(lifecycle.Server, "serve_on", lambda self, bound: True)


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: path.name)
def test_examples_run(path: Path) -> None:
    names: dict[str, object] = {}
    for block in blocks(path):
        _RUNNERS[block.language](block, path, names)


def test_the_translated_readme_has_the_same_examples() -> None:
    assert [block.text for block in blocks(TRANSLATED)] == [block.text for block in blocks(ROOT / "README.md")]


def _run_python(block: Block, path: Path, names: dict[str, object]) -> None:
    """Blocks of one document share their names; padded with lines, so that an error tells its line."""
    exec(compile("\n" * (block.line - 1) + block.text, str(path), "exec"), names)


def _run_shell(block: Block, path: Path, names: dict[str, object]) -> None:
    for line in _lines(block.text):
        result = _run_line(line)
        assert result is None or result.exit_code == 0, f"{path.name}: {line}\n{result.stderr}"


def _run_console(block: Block, path: Path, names: dict[str, object]) -> None:
    """Lines that begin with `$ ` are run; what stands below each is all that it prints."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        line, _, expected = part.partition("\n")
        result = _run_line(line)
        assert result is not None, f"{path.name}: output of {line} cannot be checked"
        refused = expected.startswith("gamaneh: ")
        assert (result.exit_code, result.stderr if refused else result.stdout) == (2 if refused else 0, expected)


def _write_file(block: Block, path: Path, names: dict[str, object]) -> None:
    Path(block.title).write_text(block.text, encoding="utf-8")


def _look(block: Block, path: Path, names: dict[str, object]) -> None:
    """A text with a title is a file that a later example reads."""
    if block.title:
        _write_file(block, path, names)


_RUNNERS: Mapping[str, Callable[[Block, Path, dict[str, object]], None]] = {
    "python": _run_python,
    "sh": _run_shell,
    "console": _run_console,
    "jsonl": _write_file,
    **dict.fromkeys(TEXTS, _look),
}


def _lines(text: str) -> Iterator[str]:
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip() and not line.startswith("#"):
            yield line


def _run_line(line: str) -> Result | None:
    program, *arguments = shlex.split(line, comments=True)
    return _PROGRAMS[Path(program).name](arguments)


def _gamaneh(arguments: Sequence[str]) -> Result:
    given = list(arguments)
    stdin = None
    if "<" in given:
        at = given.index("<")
        stdin = Path(given[at + 1]).read_text(encoding="utf-8")
        del given[at : at + 2]
    return CliRunner().invoke(app, given, input=stdin, catch_exceptions=False)


def _make(arguments: Sequence[str]) -> None:
    """Targets must be in the Makefile, variables too."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for argument in arguments:
        name, assigned, _ = argument.partition("=")
        pattern = rf"^{name} \?=" if assigned else rf"^{name}:"
        assert re.search(pattern, makefile, re.MULTILINE), f"the Makefile has no {name}"


def _pip(arguments: Sequence[str]) -> None:
    """Installing takes minutes and a network; what can be wrong with the line is looked at instead."""
    verb, *options = arguments
    assert verb == "install"
    named = [option for option in options if not option.startswith("-")]
    assert named and all((ROOT / name).exists() for name in named)


def _python(arguments: Sequence[str]) -> None:
    assert list(arguments) == ["-m", "venv", ".venv"]


_PROGRAMS: Mapping[str, Callable[[Sequence[str]], Result | None]] = {
    "gamaneh": _gamaneh,
    "make": _make,
    "pip": _pip,
    "python3": _python,
}
