"""A proposer with an option is one file and one line of a registry: its flag, refusal and doc entry follow."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gamaneh.bench.report.render import _words
from gamaneh.cli.main import app
from gamaneh.engine.assembly import build_engine
from gamaneh.errors import InvalidOption, InvalidRequest
from gamaneh.options import Drafting, EngineOptions, SpeculationOptions, asked_drafting
from gamaneh.proposers import registry
from gamaneh.testing import tiny_model

sys.path.append(str(Path(__file__).parents[2] / "docs"))
import reference

FILE = """
from gamaneh import Draft, Needs, Proposer, ProposerOption, Recipe
from gamaneh.checks import whole

STRIDE = ProposerOption("stride", int, 1, whole(1, 9), "Tokens from one guess of counting to the next.")


class Counting(Proposer):
    name = "counting"
    needs = Needs()

    def __init__(self, stride):
        self.stride = stride

    def propose(self, rows):
        return [Draft.chain([(row.tokens[-1] + self.stride) % 128]) for row in rows]

    def memory_bytes(self):
        return 0


RECIPE = Recipe(
    "counting",
    lambda parts: Counting(parts.value(STRIDE)),
    options=(STRIDE,),
    titles={"en": "counting on", "fa": "شمارش"},
    about="Counts on.",
)
"""


@pytest.fixture(params=["built in", "plug-in"])
def added(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "counting_file.py").write_text(FILE)
    if request.param == "built in":
        import counting_file  # type: ignore[import-not-found]

        monkeypatch.setattr(registry, "REGISTRY", {**registry.REGISTRY, "counting": counting_file.RECIPE})
    else:
        info = tmp_path / "counting-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: counting\nVersion: 1\n")
        (info / "entry_points.txt").write_text("[gamaneh.proposers]\ncounting = counting_file:RECIPE\n")
    yield
    sys.modules.pop("counting_file", None)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["generate", "-m", "absent.gguf", *arguments, "Hello"], env={"COLUMNS": "80"})
    return result.output


@pytest.mark.usefixtures("added")
def test_its_flag_its_refusals_and_its_entry_in_the_docs_are_there() -> None:
    assert "--stride" in CliRunner().invoke(app, ["generate", "--help"], env={"COLUMNS": "80"}).output
    assert "stride must be a whole number from 1 to 9, got 12" in run("--proposer", "counting", "--stride", "12")
    assert "--stride needs --proposer counting, not --lookup, got 2" in run("--stride", "2")
    assert "| `counting` | Counts on. | `stride` |" in "\n".join(
        reference.proposers_reference(registry.known_recipes())
    )


@pytest.mark.usefixtures("added")
@pytest.mark.parametrize("command", ["serve", "bench", "compare"])
def test_its_flag_is_in_the_help_of_every_command_that_drafts(command: str) -> None:
    assert "--stride" in CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "80"}).output


@pytest.mark.usefixtures("added")
def test_reports_call_it_by_its_titles() -> None:
    assert _words()["counting"] == {"en": "counting on", "fa": "شمارش"}


@pytest.mark.usefixtures("added")
def test_it_is_built_with_its_option() -> None:
    options = SpeculationOptions(proposer="counting", draft_length=2, proposer_options={"stride": 3})
    engine = build_engine(tiny_model(), None, options, EngineOptions(kv_blocks=8))
    assert engine.proposers["counting"].stride == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stride": 1}, "stride must be an option of a proposer: bridge, draft_branching, .*, got 1"),
        ({"min_confidence": 0.5}, "min_confidence needs the proposer draft_model or .*, not lookup, got 0.5"),
        ({"max_ngram": 0}, "max_ngram must be a whole number from 1 to 64, got 0"),
        ({"max_ngram": 2, "min_ngram": 3}, r"min_ngram must be at most max_ngram \(2\), got 3"),
    ],
)
def test_python_refuses_what_would_be_ignored(options: dict[str, object], message: str) -> None:
    speculation = SpeculationOptions(proposer="lookup", draft_length=2, proposer_options=options)
    with pytest.raises(InvalidOption, match=message):
        build_engine(tiny_model(), None, speculation, EngineOptions(kv_blocks=8))


def test_a_request_cannot_change_what_a_proposer_was_built_with() -> None:
    built = SpeculationOptions(proposer="lookup", proposer_options={"max_ngram": 4})
    for same in (None, Drafting(proposer="lookup"), built):
        asked_drafting(same, built)
    other = SpeculationOptions(proposer="lookup", proposer_options={"max_ngram": 5})
    with pytest.raises(InvalidRequest, match=r"max_ngram must be given when the engine is built, .*, got 5"):
        asked_drafting(other, built)
