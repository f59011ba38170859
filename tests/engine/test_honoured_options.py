"""What is accepted is honoured: options that a request cannot change are refused, unused weights are named."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

import pytest
from heads_engine import learned_heads

from gamaneh import LLM, Drafting, SamplingParams, SpeculationOptions
from gamaneh.core import Request
from gamaneh.engine.assembly import build_engine
from gamaneh.engine.async_engine import AsyncEngine
from gamaneh.errors import InvalidOption, InvalidRequest
from gamaneh.options import EngineOptions
from gamaneh.proposers.registry import REGISTRY, options_of
from gamaneh.testing import tiny_model

OTHER_VALUES = {
    "min_confidence": 0.9,
    "draft_branching": 2,
    "bridge": "text",
    "max_ngram": 5,
    "min_ngram": 1,
    "exit_layer": 1,
    "suffix_depth": 9,
    "suffix_share": 0.5,
    "suffix_tokens": 800,
    "suffix_store": "answers",
    "merge": True,
}
"""Of each option of a proposer, a value that is not its default."""


def test_every_option_of_a_proposer_is_among_them() -> None:
    assert OTHER_VALUES.keys() == options_of(REGISTRY.values()).keys()


@pytest.mark.parametrize("name", OTHER_VALUES)
def test_a_request_cannot_change_what_a_proposer_was_built_with(name: str) -> None:
    llm = LLM(tiny_model(), speculation=SpeculationOptions(proposer="lookup", draft_length=3))
    asked = SpeculationOptions(proposer="lookup", proposer_options={name: OTHER_VALUES[name]})
    (answer,) = llm.generate("abc", speculation=asked)
    assert answer.error is not None
    assert answer.error.startswith(f"{name} must be given when the engine is built, not with a request")


def test_the_asynchronous_engine_refuses_it_too() -> None:
    engine = AsyncEngine(LLM(tiny_model(), speculation=SpeculationOptions(proposer="lookup")).engine)
    asked = SpeculationOptions(proposer="lookup", proposer_options={"min_confidence": 0.9})
    engine.start()
    try:
        with pytest.raises(InvalidRequest, match=r"^min_confidence must be given when the engine is built"):
            asyncio.run(engine.submit(Request([1, 2], SamplingParams(max_tokens=2), drafting=asked)))
    finally:
        engine.stop()


def test_a_request_may_repeat_what_the_engine_was_built_with() -> None:
    built = SpeculationOptions(proposer="lookup", draft_length=3, proposer_options={"max_ngram": 5})
    assert LLM(tiny_model(), speculation=built).generate("abc", SamplingParams(max_tokens=2), speculation=built)


def test_an_option_that_nobody_reads_is_refused_when_the_engine_is_built() -> None:
    with pytest.raises(InvalidOption, match=r"^exit_layer needs the proposer early_exit, not lookup"):
        LLM(tiny_model(), speculation=SpeculationOptions(proposer="lookup", proposer_options={"exit_layer": 1}))


@pytest.mark.parametrize("proposer", ["lookup", "none"])
def test_a_draft_model_that_is_not_used_is_named(proposer: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        LLM(tiny_model(), draft_model=tiny_model(seed=1), speculation=SpeculationOptions(proposer=proposer))
    assert [record.message for record in caplog.records] == [
        f"draft_model is given, but the proposer {proposer} does without it; "
        "it drafts for requests that ask for the proposer draft_model"
    ]


def test_heads_that_are_not_used_are_named(caplog: pytest.LogCaptureFixture) -> None:
    heads = learned_heads("llama", "medusa", depth=3)
    with caplog.at_level(logging.WARNING):
        LLM(tiny_model(), heads=[heads], speculation=SpeculationOptions(proposer="suffix", draft_length=2))
    assert "heads (medusa) is given, but the proposer suffix does without it" in caplog.text


@pytest.mark.parametrize("proposer", ["draft_model", "auto", "portfolio", None])
def test_nothing_is_said_of_a_draft_model_that_is_used(proposer: str | None, caplog: pytest.LogCaptureFixture) -> None:
    asked = None if proposer is None else SpeculationOptions(proposer=proposer, draft_length=2)
    with caplog.at_level(logging.WARNING):
        llm = LLM(tiny_model(), draft_model=tiny_model(seed=1), speculation=asked)
        llm.with_speculation(SpeculationOptions())
    assert caplog.records == []


SHAPES: Mapping[str, Mapping[str, Any]] = {
    "eagle": {"depth": 3},
    "mtp": {"form": "chained", "depth": 3},
    "early_exit": {"num_layers": 1, "width": 16, "depth": 2},
}
DRAFTERS = ["draft_model", "draft_model by text", "draft_model by vocabulary", "eagle", "mtp", "early_exit"]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_min_confidence_spares_the_first_candidate_whoever_drafts(drafter: str) -> None:
    """Nobody is sure of anything here, so that every draft ends behind its first candidate."""
    proposer, _, bridge = drafter.partition(" by ")
    heads = [learned_heads("llama", proposer, **SHAPES[proposer])] if proposer in SHAPES else []
    draft = None if heads else tiny_model(seed=1)
    options = {"min_confidence": 1.0, **({"bridge": bridge} if bridge else {})}
    asked = SpeculationOptions(proposer=proposer, draft_length=3, proposer_options=options)
    engine = build_engine(tiny_model("llama"), draft, asked, EngineOptions(invariant=True), heads=heads)
    depths: set[int] = set()
    engine.observers.append(lambda report: depths.add(report.depth))
    params = SamplingParams(max_tokens=16, temperature=1.0, seed=3, ignore_eos=True)
    engine.add(Request([5, 6, 7, 8], params, drafting=Drafting(proposer=proposer, draft_length=3)))
    while engine.has_work:
        engine.step()
    assert max(depths) == 1
