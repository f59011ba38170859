"""The same seed gives the same tokens, or is refused by name."""

from __future__ import annotations

import random
from typing import Any

import pytest
from conftest import drain

from gamaneh import LLM, Engine, EngineOptions, InvalidRequest, SamplingParams, SpeculationOptions
from gamaneh.control.fallback import Fault
from gamaneh.core import Request
from gamaneh.testing import tiny_model

SEEDED = SamplingParams(temperature=1.0, seed=3, max_tokens=32, ignore_eos=True)
PROMPT = list(b"the cat sat on the mat and the cat")
DEPENDENT = ["rejection", "block", "typical"]
"""Rules whose tokens depend on what is drafted."""


def llm_for(rule: str, draft_length: int | None) -> LLM:
    speculation = SpeculationOptions(
        proposer="draft_model",
        rule=rule,
        draft_length=draft_length,
        proposer_options={"min_confidence": 0.0},
    )
    options = EngineOptions(invariant=True, kv_blocks=32, max_batch=4)
    return LLM(tiny_model(), draft_model=tiny_model(seed=1), speculation=speculation, options=options)


def with_clock(engine: Engine, seed: int) -> Engine:
    """Every reading of the clock is some time after the last, however long."""
    jitter = random.Random(seed)
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += jitter.expovariate(1.0) * 10 ** jitter.uniform(-4, 2)
        return now

    engine.clock = clock
    return engine


def tokens(rule: str, draft_length: int | None, clock: int, *, slow: bool = False) -> list[int]:
    engine = with_clock(llm_for(rule, draft_length).engine, clock)
    if slow:
        engine.quarantine.report("draft_model", "it takes more time than it saves", Fault.SLOW)
    engine.add(Request(PROMPT, SEEDED, id="a"))
    return drain(engine)["a"].tokens


@pytest.mark.parametrize("rule", DEPENDENT)
def test_draft_lengths_that_adapt_are_refused(rule: str) -> None:
    llm = llm_for(rule, None)
    message = f"seed must be left out with the rule {rule}, .* unless draft_length is fixed; .*, got 3"
    with pytest.raises(InvalidRequest, match=message):
        llm.engine.add(Request(PROMPT, SEEDED))
    (answer,) = llm.generate([PROMPT], SEEDED)
    assert answer.error is not None
    assert answer.error.startswith("seed must be left out")


@pytest.mark.parametrize("rule", DEPENDENT)
def test_a_fixed_draft_length_gives_the_same_tokens_whatever_the_time(rule: str) -> None:
    """Other requests leave a slow proposer out for a while."""
    assert len({tuple(tokens(rule, 4, clock, slow=clock % 2 == 0)) for clock in range(6)}) == 1


@pytest.mark.parametrize("draft_length", [None, 4])
@pytest.mark.parametrize("rule", ["auto", "match"])
def test_draws_that_do_not_depend_on_drafts_keep_the_seed_in_any_case(rule: str, draft_length: int | None) -> None:
    assert len({tuple(tokens(rule, draft_length, clock)) for clock in range(3)}) == 1


@pytest.mark.parametrize(
    "options", [{"temperature": 0.0, "seed": 3}, {"temperature": 1.0, "seed": None}], ids=["greedy", "without a seed"]
)
@pytest.mark.parametrize("rule", DEPENDENT)
def test_requests_without_a_draw_to_repeat_are_served(rule: str, options: dict[str, Any]) -> None:
    (answer,) = llm_for(rule, None).generate([PROMPT], SamplingParams(max_tokens=8, ignore_eos=True, **options))
    assert (answer.error, len(answer.tokens)) == (None, 8)


def test_plain_requests_keep_their_seed_under_any_rule() -> None:
    plain = SpeculationOptions(proposer="none", rule="rejection")
    llm = llm_for("rejection", None)
    first, again = (llm.generate([PROMPT], SEEDED, speculation=plain)[0].tokens for _ in range(2))
    assert first == again
