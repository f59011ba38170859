"""A proposer with an option is one file and one line of the registry, and a plug-in is no less."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gamaneh import LLM, SpeculationOptions
from gamaneh.bench.report.render import _words
from gamaneh.cli.main import app
from gamaneh.errors import InvalidOption
from gamaneh.proposers import registry
from gamaneh.testing import tiny_model

FILE = '''
from gamaneh import Draft, Needs, ProposalRow, Proposer, Recipe
from gamaneh.checks import whole
from gamaneh.proposers.recipe import ProposerOption

ECHO_LENGTH = ProposerOption("echo_length", int, 3, whole(1, 8), "Tokens that echoing repeats.")


class Echoing(Proposer):
    """Drafts the last token again and again."""

    name = "echoing"
    needs = Needs()

    def __init__(self, length):
        self.length = length

    def propose(self, rows):
        return [Draft.chain([row.tokens[-1]] * min(self.length, row.max_depth)) for row in rows]


recipe = Recipe(
    "echoing",
    lambda parts: Echoing(parts.value(ECHO_LENGTH)),
    options=(ECHO_LENGTH,),
    titles={"en": "echo", "fa": "پژواک"},
    about="Repeats the last token.",
)
'''


def add_built_in(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file, and the line in the registry."""
    path.joinpath("echoing_built_in.py").write_text(FILE, encoding="utf-8")
    recipe = importlib.import_module("echoing_built_in").recipe
    monkeypatch.setattr(registry, "REGISTRY", {**registry.REGISTRY, recipe.name: recipe})


def add_plug_in(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file, and the line of an entry point."""
    path.joinpath("echoing_plug_in.py").write_text(FILE, encoding="utf-8")
    info = path / "echoing-1.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text("Metadata-Version: 2.1\nName: echoing\nVersion: 1\n")
    info.joinpath("entry_points.txt").write_text("[gamaneh.proposers]\nechoing = echoing_plug_in:recipe\n")


@pytest.fixture(params=[add_built_in, add_plug_in], ids=["built in", "plug-in"])
def added(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    add: Callable[[Path, pytest.MonkeyPatch], None] = request.param
    for module in ("echoing_built_in", "echoing_plug_in"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    add(tmp_path, monkeypatch)


def run(*words: str) -> tuple[int, str]:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, list(words))
    return result.exit_code, result.output


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize("command", ["generate", "serve", "bench", "compare"])
def test_its_option_is_in_the_help(command: str) -> None:
    _, shown = run(command, "--help")
    assert "--echo-length" in shown
    assert "Tokens that echoing repeats." in " ".join(shown.replace("│", " ").split())


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--proposer", "echoing", "--echo-length", "9"), "must be a whole number from 1 to 8, got 9"),
        (("--lookup", "--echo-length", "2"), "--echo-length needs --proposer echoing, not --lookup, got 2"),
    ],
    ids=["out of range", "not read"],
)
def test_its_option_is_refused_by_name(words: tuple[str, ...], message: str) -> None:
    code, shown = run("generate", "--model", "nowhere", *words, "x")
    assert code == 2
    assert message in shown


@pytest.mark.usefixtures("added")
def test_python_builds_it_with_its_option() -> None:
    asked = SpeculationOptions(proposer="echoing", draft_length=5, proposer_options={"echo_length": 2})
    llm = LLM(tiny_model(), speculation=asked)
    assert llm.engine.proposers["echoing"].length == 2  # type: ignore[attr-defined]
    assert max(report.depth for report in llm.generate("abc")[0].reports) == 2
    with pytest.raises(InvalidOption, match="echo_length must be a whole number from 1 to 8, got 0"):
        LLM(tiny_model(), speculation=SpeculationOptions(proposer="echoing", proposer_options={"echo_length": 0}))


@pytest.mark.usefixtures("added")
def test_reports_call_it_by_its_titles() -> None:
    assert _words()["echoing"] == {"en": "echo", "fa": "پژواک"}
