"""A draft model with another tokenizer is taken, and what leads to it is said."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from gamaneh.core import Request
from gamaneh.engine.assembly import build_engine
from gamaneh.errors import InvalidOption, TokenizerMismatch
from gamaneh.models.loading import LoadedModel
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.testing import ByteTokenizer, PieceTokenizer, tiny_model

OTHER = PieceTokenizer([*(bytes([byte]) for byte in reversed(range(256))), " the"])
OPTIONS = EngineOptions(max_batch=2, max_context=128, invariant=True)


class Lower(PieceTokenizer):
    """Changes what it reads."""

    def encode(self, text: str, special: bool = True) -> list[int]:
        return super().encode(text.lower(), special)


def drafting(tokenizer: object) -> LoadedModel:
    return replace(tiny_model(seed=1), tokenizer=tokenizer, name="small")


def speculation(**options: object) -> SpeculationOptions:
    return SpeculationOptions(proposer="draft_model", draft_length=3, proposer_options=options)


def test_it_is_logged_at_the_start_and_shown_in_the_snapshot(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="gamaneh"):
        engine = build_engine(tiny_model(), drafting(OTHER), speculation(bridge="text"), OPTIONS)
    about = engine.snapshot().proposers["draft_model"].about
    assert about.startswith("text bridge to the tokens of small: asked for by the option bridge")
    assert [record.getMessage() for record in caplog.records] == [f"draft_model: {about}"]


def test_the_same_tokenizer_is_nothing_to_speak_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="gamaneh"):
        engine = build_engine(tiny_model(), drafting(ByteTokenizer()), speculation(), OPTIONS)
    assert engine.snapshot().proposers["draft_model"].about == ""
    assert caplog.records == []


def test_drafts_by_text_are_judged_by_match() -> None:
    """`auto` takes no rule that reads probabilities, as there are none."""
    rules = set()
    engine = build_engine(tiny_model(), drafting(OTHER), speculation(bridge="text"), OPTIONS)
    engine.observers.append(lambda report: rules.add(report.rule))
    engine.add(Request(list(b"the cat"), SamplingParams(temperature=1.0, max_tokens=8, ignore_eos=True)))
    while engine.has_work:
        engine.step()
    assert rules == {"match"}


def test_a_tokenizer_that_cannot_be_reached_is_refused_at_the_start() -> None:
    with pytest.raises(TokenizerMismatch, match="the tokenizer of small must spell texts byte for byte"):
        build_engine(tiny_model(), drafting(Lower([bytes([byte]) for byte in range(256)])), speculation(), OPTIONS)


def test_trees_by_text_are_refused_at_the_start() -> None:
    with pytest.raises(InvalidOption, match="draft_branching must be 1 with the text bridge, got 3"):
        build_engine(tiny_model(), drafting(OTHER), speculation(bridge="text", draft_branching=3), OPTIONS)


@pytest.mark.parametrize(("options", "branching"), [({}, 1), ({"draft_branching": 4}, 4)])
def test_branching_is_declared(options: dict[str, int], branching: int) -> None:
    engine = build_engine(tiny_model(), drafting(ByteTokenizer()), speculation(**options), OPTIONS)
    assert engine.proposers["draft_model"].needs.branching == branching


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bridge": "radio"}, "bridge must be one of auto, text, vocabulary, got 'radio'"),
        ({"draft_branching": 0}, "draft_branching must be a whole number from 1 to 16, or none, got 0"),
    ],
)
def test_options_are_checked(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        build_engine(tiny_model(), drafting(ByteTokenizer()), speculation(**options), OPTIONS)
