"""SmolLM2-135M drafts with a random EAGLE head and with its own first layers: the same tokens, at both temperatures."""

from __future__ import annotations

from pathlib import Path

import pytest

from gamaneh.engine.llm import LLM
from gamaneh.models.loading import LoadedModel, load
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.testing import tiny_heads

OPTIONS = EngineOptions(max_batch=4, max_context=512, invariant=True)
PROMPTS = ["The moon is", "def add(a, b):"]


@pytest.fixture(scope="module")
def target(model_file: Path) -> LoadedModel:
    return load(model_file)


@pytest.mark.parametrize("proposer", ["eagle", "early_exit"])
def test_output_is_that_of_plain_decoding(target: LoadedModel, proposer: str) -> None:
    heads = [tiny_heads(target, "eagle", draft_vocab=2048)] if proposer == "eagle" else []
    speculation = SpeculationOptions(
        proposer=proposer,
        draft_length=3,
        proposer_options={"min_confidence": 0.0} | ({"exit_layer": 20} if proposer == "early_exit" else {}),
    )
    llm = LLM(target, heads=heads, speculation=speculation, options=OPTIONS)
    params = [SamplingParams(temperature=heat, seed=3, max_tokens=10, ignore_eos=True) for heat in (0.0, 1.0)]
    answers = llm.generate(PROMPTS, params)
    plain = llm.generate(PROMPTS, params, speculation=SpeculationOptions())
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in plain]
    assert any(report.drafted for answer in answers for report in answer.reports)
