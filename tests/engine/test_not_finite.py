"""A row whose numbers are not finite ends its own request, and nobody else ever meets what it wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from conftest import assert_idle, drain

from gamaneh import LLM, EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.core import Draft, FinishReason, Needs, ProposalRow, Request
from gamaneh.models.decoder import Decoder
from gamaneh.models.loading import LoadedModel
from gamaneh.testing import tiny_model
from gamaneh.testing.tiny import tiny_weights

POISON = 7
"""A token whose embedding is not finite."""

GREEDY = SamplingParams(max_tokens=8, ignore_eos=True, logit_bias={POISON: -1e6})


def poisoned() -> LoadedModel:
    model = tiny_model("llama")
    weights = tiny_weights(model.config)
    weights["embedding"][POISON] = float("nan")
    weights.setdefault("head", tiny_weights(model.config)["embedding"].clone())
    config = replace(model.config, tied_embedding=False)
    return replace(model, config=config, decoder=Decoder(config, weights))


def engine_of(invariant: bool):
    options = EngineOptions(max_batch=4, step_tokens=32, kv_blocks=48, invariant=invariant)
    return LLM(poisoned(), options=options).engine


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(10, 200, (40, 40), generator=generator).tolist()
    return [[*row[: 20 + at % 20]] for at, row in enumerate(drawn)]


@pytest.mark.parametrize("invariant", [True, False])
def test_requests_beside_and_after_it_answer_as_if_it_had_never_been(invariant: bool) -> None:
    clean, mixed = engine_of(invariant), engine_of(invariant)
    for at, prompt in enumerate(prompts()):
        clean.add(Request(prompt, GREEDY, id=f"r{at}"))
        mixed.add(Request(prompt, GREEDY, id=f"r{at}"))
        if at % 3 == 0:
            mixed.add(Request([*prompt[:17], POISON, *prompt[17:]], GREEDY, id=f"bad{at}"))
    expected, found = drain(clean), drain(mixed)
    for name, answer in expected.items():
        assert found[name].finish_reason is FinishReason.LENGTH, found[name].error
        if invariant:
            assert found[name].tokens == answer.tokens
    for name in found.keys() - expected.keys():
        assert found[name].finish_reason is FinishReason.ERROR
        assert "must be finite, got NaN or infinity" in str(found[name].error)
    assert_idle(mixed)


def test_what_it_published_before_it_failed_is_found_by_nobody() -> None:
    engine = engine_of(invariant=True)
    prefix = prompts()[0][:32]
    engine.add(Request([*prefix, POISON, 1, 2], GREEDY, id="bad"))
    assert drain(engine)["bad"].finish_reason is FinishReason.ERROR
    engine.add(Request([*prefix, 1, 2], GREEDY, id="good"))
    drain(engine)
    assert engine.backend.kv.stats.hit_tokens == 0


class Poisoner:
    """Guesses right, then the token whose row is not finite."""

    name = "poisoner"
    needs = Needs()

    def __init__(self, answer: Sequence[int], prompt_len: int) -> None:
        self.answer, self.prompt_len = answer, prompt_len

    def propose(self, rows: Sequence[ProposalRow]) -> list[Draft]:
        done = [len(row.tokens) - self.prompt_len for row in rows]
        return [
            Draft.chain([*self.answer[at : at + 2], POISON, 5][: row.max_depth])
            for at, row in zip(done, rows, strict=True)
        ]

    def end(self, request_id: str) -> None: ...

    def forget(self, request_id: str) -> None: ...

    def memory_bytes(self) -> int:
        return 0


def test_a_refused_candidate_that_is_not_finite_leaves_nothing_behind() -> None:
    prompt, params = prompts()[1], replace(GREEDY, max_tokens=24)
    plain = engine_of(invariant=True)
    plain.add(Request(prompt, params, id="r"))
    answer = drain(plain)["r"].tokens
    engine = engine_of(invariant=True)
    engine.register(Poisoner(answer, len(prompt)))
    drafting = SpeculationOptions(proposer="poisoner", draft_length=4)
    engine.add(Request(prompt, params, id="r", drafting=drafting))
    engine.add(Request(prompts()[2], params, id="neighbour"))
    found = drain(engine)
    assert found["r"].tokens == answer
    assert found["neighbour"].finish_reason is FinishReason.LENGTH
    assert_idle(engine)
