"""Ids that the tokenizer does not have: padding of the output matrix, and gaps of the vocabulary."""

from __future__ import annotations

import pytest

from gamaneh.core import Request
from gamaneh.errors import InvalidRequest
from gamaneh.options import SamplingParams, SpeculationOptions
from gamaneh.testing import ByteTokenizer, ScriptedProposer, ScriptedRunner, constant, scripted_engine

ROWS = 300
GAP = 7


class Gapped(ByteTokenizer):
    absent_ids = frozenset({GAP})


def likes(*ids: int) -> list[float]:
    """A distribution that has these ids before all others."""
    return [1.0 if token in ids else 1e-6 for token in range(ROWS)]


@pytest.mark.parametrize("absent", [GAP, ByteTokenizer.vocab_size, ROWS - 1])
@pytest.mark.parametrize("rule", ["match", "rejection", "block", "typical"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_they_are_never_emitted(absent: int, rule: str, temperature: float) -> None:
    script = constant(likes(absent, ord("a")))
    engine = scripted_engine(
        ScriptedRunner(script, ROWS),
        Gapped(),
        proposer=ScriptedProposer(script, ROWS, 1.0),
        speculation=SpeculationOptions(proposer="scripted", draft_length=3, rule=rule),
    )
    engine.add(Request([1, 2], SamplingParams(max_tokens=20, temperature=temperature, ignore_eos=True)))
    tokens = []
    while engine.has_work:
        tokens += [token for output in engine.step() for token in output.tokens]
    assert len(tokens) == 20 and absent not in tokens


@pytest.mark.parametrize("token", [GAP, ByteTokenizer.vocab_size, ROWS])
@pytest.mark.parametrize("field", ["prompt", "reference", "logit_bias", "stop_token_ids", "bad_words"])
def test_they_are_refused_at_the_door(token: int, field: str) -> None:
    engine = scripted_engine(ScriptedRunner(constant(likes(1)), ROWS), Gapped())
    params = {
        "logit_bias": SamplingParams(logit_bias={token: 1.0}),
        "stop_token_ids": SamplingParams(stop_token_ids=(token,)),
        "bad_words": SamplingParams(bad_words=((token,),)),
    }.get(field, SamplingParams())
    prompt = [1, token] if field == "prompt" else [1]
    reference = [token] if field == "reference" else []
    with pytest.raises(InvalidRequest, match=field):
        engine.add(Request(prompt, params, reference=reference))


def test_a_minimum_that_the_context_has_no_room_for_is_refused() -> None:
    engine = scripted_engine(ScriptedRunner(constant(likes(1)), ROWS, max_context=64), ByteTokenizer())
    with pytest.raises(InvalidRequest, match="min_tokens must be at most 54"):
        engine.add(Request([1] * 10, SamplingParams(min_tokens=55)))
    assert engine.add(Request([1] * 10, SamplingParams(min_tokens=54)))
