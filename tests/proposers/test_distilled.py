"""What a distilled draft model says of itself, and for whom it counts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gamaneh.engine.llm import LLM
from gamaneh.errors import CorruptModel
from gamaneh.heads.artifact import Provenance, mark_target
from gamaneh.models.loading import LoadedModel
from gamaneh.options import SpeculationOptions
from gamaneh.proposers.distilled import ABOUT, About, expected_survival, read_about, write_about
from gamaneh.testing import tiny_model

MEASURED = {"survival": {"all": [0.75, 0.5], "chat": [0.25]}}


def target() -> LoadedModel:
    return tiny_model("llama")


def draft_in(folder: Path, quality: dict[str, Any] = MEASURED) -> LoadedModel:
    """A draft model that says it learned from the target."""
    write_about(About(mark_target(target()), Provenance(), quality), folder)
    return replace(tiny_model("llama", seed=1), path=folder)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda about: about.pop("quality"), "must have the objects target, provenance, quality"),
        (lambda about: about.update(target="smollm2"), "must have the objects"),
        (lambda about: about["target"].pop("name"), "TargetMark in .* must have the keys"),
        (lambda about: about["provenance"].update(author="me"), "Provenance in .* must have the keys"),
        (lambda about: about["quality"].update(survival={"all": [2.0]}), "survival in .* must be lists of numbers"),
    ],
    ids=["missing", "no object", "half a target", "unknown key", "no share"],
)
def test_what_a_folder_says_is_checked(tmp_path: Path, change: Callable[[Any], object], complaint: str) -> None:
    write_about(About(mark_target(target()), Provenance(), {}), tmp_path)
    values = json.loads((tmp_path / ABOUT).read_text(encoding="utf-8"))
    change(values)
    (tmp_path / ABOUT).write_text(json.dumps(values), encoding="utf-8")

    with pytest.raises(CorruptModel, match=complaint):
        read_about(tmp_path)


def test_a_draft_model_is_expected_to_survive_as_was_measured(tmp_path: Path) -> None:
    assert expected_survival(draft_in(tmp_path), target()) == (0.75, 0.5)


def test_what_was_measured_says_nothing_about_another_target(tmp_path: Path) -> None:
    assert expected_survival(draft_in(tmp_path), tiny_model("llama", seed=2)) == ()


def test_nothing_is_expected_where_nothing_was_measured(tmp_path: Path) -> None:
    assert expected_survival(draft_in(tmp_path, {}), target()) == ()
    assert expected_survival(tiny_model("llama", seed=1), target()) == ()


def test_the_proposer_tells_what_is_expected_of_its_draft_model(tmp_path: Path) -> None:
    llm = LLM(target(), draft_model=draft_in(tmp_path), speculation=SpeculationOptions(proposer="draft_model"))
    assert llm.engine.proposers["draft_model"].needs.expected_survival == (0.75, 0.5)
