"""The engine emits the tokens of the reference, for every exact rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from conftest import assert_idle, run
from torch import Tensor

from gamaneh import Draft, Needs, ProposalRow, SamplingParams, SpeculationOptions
from gamaneh.core import Sampler
from gamaneh.reference import Model, generate, propose
from gamaneh.sampling.pipeline import RequestSampler
from gamaneh.sampling.rules import RULES
from gamaneh.testing import ByteTokenizer, Script, ScriptedRunner, hashed, scripted_engine

VOCAB = 32
EXACT = [name for name, make in RULES.items() if make(SpeculationOptions()).exact]
PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.0},
    "filtered": {"temperature": 1.3, "top_k": 9, "top_p": 0.95},
    "penalised": {"temperature": 0.8, "repetition_penalty": 1.4, "frequency_penalty": 0.6, "min_tokens": 12},
}
PROMPTS = {"a": [1, 2, 3], "b": [7], "c": [4, 5, 6, 7, 8, 9]}
ENDS = (3, 11)


def model_of(script: Script) -> Model:
    def model(tokens: Sequence[int]) -> Tensor:
        return torch.stack([script(tokens[: end + 1]) for end in range(len(tokens))])

    return model


def close_to(script: Script, noise: float) -> Script:
    """A draft model that is right more often than not."""
    other = hashed(VOCAB, noise)
    return lambda history: script(history) + other([*history, 1])


@dataclass
class ReferenceProposer:
    """Drafts as the reference does."""

    model: Model
    name: str = "reference"
    needs: Needs = field(default_factory=lambda: Needs(probs=True))

    def propose(self, rows: Sequence[ProposalRow]) -> list[Draft]:
        return [propose(self.model, row.tokens, own(row.sampler), row.use, row.max_depth) for row in rows]

    def end(self, request_id: str) -> None: ...

    def forget(self, request_id: str) -> None: ...

    def memory_bytes(self) -> int:
        return 0


def own(sampler: Sampler) -> RequestSampler:
    assert isinstance(sampler, RequestSampler)
    return sampler


@pytest.mark.parametrize("draft_length", [1, 4])
@pytest.mark.parametrize("options", PARAMS.values(), ids=PARAMS)
@pytest.mark.parametrize("rule", EXACT)
def test_the_engine_emits_the_tokens_of_the_reference(rule: str, options: dict[str, Any], draft_length: int) -> None:
    script = hashed(VOCAB)
    draft_script = close_to(script, 2.0)
    params = SamplingParams(max_tokens=24, seed=5, stop_token_ids=ENDS, **options)
    speculation = SpeculationOptions(proposer="reference", rule=rule, draft_length=draft_length)  # type: ignore[arg-type]
    engine = scripted_engine(ScriptedRunner(script, VOCAB), ByteTokenizer(), speculation=speculation)
    engine.register(ReferenceProposer(model_of(draft_script)))

    answers = run(engine, {name: (prompt, params) for name, prompt in PROMPTS.items()})
    assert_idle(engine)

    for name, prompt in PROMPTS.items():
        expected = generate(
            model_of(script),
            model_of(draft_script),
            prompt,
            params,
            RULES[rule](SpeculationOptions()),
            draft_length=draft_length,
            vocab_size=VOCAB,
            end_ids=ENDS,
        )
        assert answers[name].tokens == expected
        assert len(expected) > 0


def test_the_reference_needs_fewer_forwards_than_tokens() -> None:
    script = hashed(VOCAB)
    forwards = []

    def target(tokens: Sequence[int]) -> Tensor:
        forwards.append(len(tokens))
        return model_of(script)(tokens)

    params, rule = SamplingParams(max_tokens=21), RULES["match"](SpeculationOptions())
    tokens = generate(target, model_of(script), [1], params, rule, draft_length=4, vocab_size=VOCAB)
    plain = generate(target, model_of(script), [1], params, rule, draft_length=0, vocab_size=VOCAB)
    assert tokens == plain
    assert len(forwards) == (1 + 4) + 21
