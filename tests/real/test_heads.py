"""SmolLM2-135M with heads: the same tokens as without."""

from __future__ import annotations

from pathlib import Path

import pytest

from gamaneh.engine.llm import LLM
from gamaneh.models.loading import LoadedModel, load
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.testing import tiny_heads

PROMPTS = ["The rope, the net and the", "یکی بود یکی نبود"]


@pytest.fixture(scope="module")
def loaded(model_file: Path) -> LoadedModel:
    return load(model_file)


@pytest.fixture(scope="module")
def llm(loaded: LoadedModel) -> LLM:
    heads = [tiny_heads(loaded, kind, draft_vocab=2048, depth=2) for kind in ("medusa", "mtp")]
    return LLM(loaded, heads=heads, options=EngineOptions(max_batch=2, max_context=256, invariant=True))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("kind", ["medusa", "mtp"])
def test_output_is_that_of_plain_decoding(llm: LLM, kind: str, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, seed=3, max_tokens=12)
    plain, guessed = (
        llm.generate(PROMPTS, params, speculation=speculation)
        for speculation in (
            SpeculationOptions(),
            SpeculationOptions(proposer=kind, draft_length=2),
        )
    )
    assert [answer.tokens for answer in guessed] == [answer.tokens for answer in plain]
    assert any(report.drafted for answer in guessed for report in answer.reports)
