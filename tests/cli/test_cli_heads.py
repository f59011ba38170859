"""Heads on the command line and from Python: inspected, opened, refused."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typer.testing import CliRunner, Result

from gamaneh.cli import session
from gamaneh.cli.main import app
from gamaneh.cli.option_groups import ModelChoice, ProposerChoice
from gamaneh.engine.llm import LLM
from gamaneh.errors import InvalidOption, ModelError
from gamaneh.heads.artifact import Provenance, mark_target, save_artifact
from gamaneh.options import SamplingParams
from gamaneh.proposers.distilled import About, write_about
from gamaneh.testing import tiny_heads, tiny_model

sys.path.append(str(Path(__file__).parents[1] / "docs"))
from tiny_catalogue import write_tiny_gguf

TARGET = tiny_model("llama")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "heads"
    provenance = Provenance("gamaneh train medusa", {"prompts": 12}, "0abc", {"torch": "2.13"}, "2026-01-02")
    quality = {"survival": {"chat": [0.5, 0.25]}, "ranks": [[0.4, 0.1]], "loss": 2.5}
    heads = tiny_heads(TARGET, draft_vocab=20, depth=2)
    save_artifact(replace(heads, provenance=provenance, quality=quality), path)
    return path


def inspect(*arguments: object, status: int = 0) -> Result:
    result = CliRunner().invoke(app, ["inspect", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == status, result.stderr
    return result


def test_inspect_tells_a_person_what_heads_are(folder: Path) -> None:
    shown = inspect(folder).stdout
    for words in (
        "medusa",
        "depth 2",
        "tiny-llama-0",
        "2 layers of 32, 260 tokens",
        "20 of 260 tokens",
        "gamaneh train medusa",
        "2026-01-02, commit 0abc",
        "prompts 12",
        "0.500 0.250",
        "loss 2.5",
    ):
        assert words in shown, words


def test_inspect_says_what_is_not_known(folder: Path) -> None:
    save_artifact(replace(tiny_heads(TARGET), provenance=Provenance(), quality={}), folder)
    shown = inspect(folder).stdout
    assert "date unknown, commit unknown" in shown and "not measured" in shown


def test_inspect_gives_the_same_as_json(folder: Path) -> None:
    values = json.loads(inspect(folder, "--json").stdout)
    assert (values["kind"], values["draft_vocab"], values["target"]["name"]) == ("medusa", 20, "tiny-llama-0")
    assert values["quality"]["survival"] == {"chat": [0.5, 0.25]}
    assert values["weights"] > 0 and values["bytes"] > 4 * values["weights"]


def test_inspect_tells_what_a_distilled_draft_model_is(tmp_path: Path) -> None:
    data = {"train": {"texts": 12}, "student": {"num_layers": 2}}
    about = About(mark_target(TARGET), Provenance("gamaneh train distill", data), {"survival": {"all": [0.25]}})
    write_about(about, tmp_path)
    save_file({"weight": torch.zeros(3, 4)}, tmp_path / "model.safetensors")

    shown, values = inspect(tmp_path).stdout, json.loads(inspect(tmp_path, "--json").stdout)

    for words in ("draft_model", "num_layers 2", "tiny-llama-0", "gamaneh train distill", "train (texts 12)", "0.250"):
        assert words in shown, words
    assert (values["kind"], values["weights"]) == ("draft_model", 12)
    assert values["bytes"] == (tmp_path / "model.safetensors").stat().st_size


@pytest.mark.parametrize("named", ["file", "folder"])
def test_inspect_describes_a_model(named: str, tmp_path: Path) -> None:
    file = write_tiny_gguf(tmp_path / "tiny.gguf", seed=0)
    where = file if named == "file" else tmp_path
    values = json.loads(inspect(where, "--json").stdout)
    assert (values["kind"], values["name"], values["path"]) == ("model", "tiny", str(file))
    assert values["end_tokens"] and values["bytes"] > 0
    shown = inspect(where).stdout
    assert values["family"] in shown and f"{values['layers']} layers of {values['hidden_size']}" in shown


def test_inspect_refuses_a_damaged_model_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    assert "tiny.gguf must be a whole GGUF file" in inspect(tmp_path / "tiny.gguf", status=2).stderr


def test_inspect_refuses_a_distilled_draft_model_with_damaged_weights(tmp_path: Path) -> None:
    write_about(About(mark_target(TARGET), Provenance(), {}), tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"half of it")
    assert "must be a whole safetensors file" in inspect(tmp_path, status=2).stderr


def test_inspect_refuses_what_is_no_heads_in_one_line(tmp_path: Path) -> None:
    for arguments in (tmp_path, tmp_path / "nothing"):
        assert len(inspect(arguments, status=2).stderr.splitlines()) == 1


@pytest.fixture
def tiny_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model that a command opens is the tiny one."""
    monkeypatch.setattr(session, "load", lambda *args, **kwargs: TARGET)
    monkeypatch.setattr(session, "open_for", lambda *args, **kwargs: TARGET)
    monkeypatch.setattr(session, "file_or_name", lambda name: TARGET)


@pytest.mark.usefixtures("tiny_target")
def test_heads_alone_are_the_proposer(folder: Path) -> None:
    llm = session.open_llm(ModelChoice(model="tiny"), ProposerChoice(heads=[str(folder)]))
    assert llm.speculation.proposer == "medusa"
    generated = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=12, ignore_eos=True))[0]
    assert {report.proposer for report in generated.reports if report.drafted} == {"medusa"}


@pytest.mark.usefixtures("tiny_target")
def test_beside_others_heads_are_used_where_they_pay(folder: Path) -> None:
    llm = session.open_llm(ModelChoice(model="tiny"), ProposerChoice(heads=[str(folder)], lookup=True))
    assert llm.speculation.proposer == "auto"
    assert {"medusa", "lookup"} <= set(llm.engine.proposers)


@pytest.mark.usefixtures("tiny_target")
def test_a_server_has_all_heads_that_it_is_given(folder: Path, tmp_path: Path) -> None:
    second = tmp_path / "mtp"
    save_artifact(tiny_heads(TARGET, "mtp"), second)
    choice = ProposerChoice(heads=[str(folder), str(second)])
    _, engine = session.open_engine(ModelChoice(model="tiny"), choice)
    assert {"medusa", "mtp"} <= set(engine.proposers)
    assert engine.speculation.proposer == "auto"


def test_python_takes_heads_as_paths_and_as_objects(folder: Path) -> None:
    llm = LLM(TARGET, heads=[folder, tiny_heads(TARGET, "mtp")])
    assert llm.speculation.proposer == "auto"
    alone = LLM(TARGET, heads=[folder])
    assert alone.speculation.proposer == "medusa"
    assert alone.with_speculation(alone.speculation).heads == alone.heads


def test_heads_of_another_target_are_refused(folder: Path) -> None:
    with pytest.raises(ModelError, match="must be used with it, got tiny-llama-1"):
        LLM(tiny_model("llama", seed=1), heads=[folder])


def test_a_proposer_whose_heads_are_missing_is_refused(folder: Path) -> None:
    llm = LLM(TARGET, heads=[folder])
    with pytest.raises(InvalidOption, match="heads must be given for the proposer mtp, of this kind, got 'medusa'"):
        llm.with_speculation(replace(llm.speculation, proposer="mtp"))


def test_options_of_drafting_networks_go_with_heads() -> None:
    choice = ProposerChoice(
        heads=["some/eagle"], draft_sampling="greedy", draft_length=3, proposer_options={"min_confidence": 0.5}
    )
    assert choice.speculation().proposer_options == {"min_confidence": 0.5}
    with pytest.raises(InvalidOption, match="--max-ngram needs --lookup, not --heads"):
        ProposerChoice(heads=["some/eagle"], proposer_options={"max_ngram": 3})
