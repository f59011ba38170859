"""On the real small model speculative answers are those of plain decoding; fixed texts would depend on the machine."""

from __future__ import annotations

from functools import cache
from typing import Any

import golden_adapter as door
import pytest

from gamaneh import LLM, Generation, SamplingParams

PROMPTS = [
    "def add(a, b):\n    return a + b\n\ndef subtract(a, b):\n",
    "The capital of France is Paris. The capital of Italy is",
]
SAMPLING = {
    "greedy": SamplingParams(max_tokens=20),
    "seeded": SamplingParams(max_tokens=20, temperature=0.8, seed=3, top_p=0.95, frequency_penalty=0.2),
}
PROPOSERS: dict[str, dict[str, Any]] = {
    "lookup": {"proposer": "lookup", "draft_length": 5},
    "medusa": {"proposer": "medusa", "draft_length": 3},
    "eagle": {"proposer": "eagle", "draft_length": 4},
    "early exit": {"proposer": "early_exit", "exit_layer": 10, "draft_length": 2},
}


@cache
def answers(proposer: str, sampling: str) -> list[Generation]:
    return llm(proposer).generate(PROMPTS, SAMPLING[sampling])


@cache
def llm(proposer: str) -> LLM:
    return door.small_llm(**PROPOSERS.get(proposer, {}))


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_speculative_answers_are_the_plain_ones(proposer: str, sampling: str) -> None:
    plain, drafted = answers("none", sampling), answers(proposer, sampling)
    assert [(own.tokens, own.text, own.finish_reason) for own in drafted] == [
        (own.tokens, own.text, own.finish_reason) for own in plain
    ]


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_something_is_drafted(proposer: str) -> None:
    assert any(report.drafted for answer in answers(proposer, "greedy") for report in answer.reports)
