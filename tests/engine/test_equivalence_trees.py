"""Output = plain decoding when the draft model's drafts branch."""

from __future__ import annotations

import pytest
import torch
from conftest import assert_idle, run
from test_equivalence import DRAFT_SEEDS, PROMPTS, expected, params_for, ready
from under_test import tiny_model

from gamaneh.core import StepReport
from gamaneh.engine.assembly import assemble
from gamaneh.engine.engine import Engine
from gamaneh.options import EngineOptions, SpeculationOptions
from gamaneh.proposers.recipe import Ingredients
from gamaneh.proposers.registry import build_proposers
from gamaneh.testing import TINY_CONFIGS, ByteTokenizer


def engine_for(
    family: str,
    dtype: torch.dtype = torch.float32,
    *,
    draft: str = "self",
    branching: int = 3,
    k: int | None = 4,
    num_blocks: int = 64,
    step_tokens: int = 256,
    invariant_draft: bool = True,
) -> Engine:
    target = ready(tiny_model(family, dtype=dtype), num_blocks=num_blocks, invariant=True, prefix_cache=True)
    model = tiny_model(family, seed=DRAFT_SEEDS[draft], dtype=dtype)
    speculation = SpeculationOptions(
        proposer="draft_model", draft_length=k, proposer_options={"min_confidence": 0.0, "draft_branching": branching}
    )
    small = ready(model, num_blocks=64, invariant=invariant_draft, prefix_cache=False)
    proposers = build_proposers(Ingredients(speculation, target, small))
    options = EngineOptions(max_batch=8, step_tokens=step_tokens)
    return assemble(target.backend, ByteTokenizer(), proposers=proposers, speculation=speculation, options=options)


def outputs(engine: Engine, names: str, temperature: float) -> dict[str, list[int]]:
    reports: list[StepReport] = []
    engine.observers.append(reports.append)
    results = run(engine, {name: (PROMPTS[name], params_for(temperature, 5)) for name in names})
    assert_idle(engine)
    assert engine.proposers["draft_model"].reader.backend.kv.pool.in_use == 0
    assert any(report.drafted > report.depth for report in reports), "no draft has branched"
    return {name: result.tokens for name, result in results.items()}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("names", ["a", "abcd"])
@pytest.mark.parametrize("draft", DRAFT_SEEDS)
@pytest.mark.parametrize("family", TINY_CONFIGS)
def test_every_family(family: str, draft: str, names: str, temperature: float) -> None:
    """CASES kind 37 with mistral and gemma3: across the border of a sliding window of 32."""
    engine = engine_for(family, draft=draft)
    assert outputs(engine, names, temperature) == expected(family, names, temperature)


@pytest.mark.parametrize(("k", "branching"), [(1, 2), (2, 5), (7, 2), (15, 3), (3, 16)])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_form(k: int, branching: int, temperature: float) -> None:
    engine = engine_for("llama", k=k, branching=branching)
    assert outputs(engine, "abcd", temperature) == expected("llama", "abcd", temperature)


def test_a_length_that_adapts() -> None:
    engine = engine_for("llama", k=None)
    results = run(engine, {name: (PROMPTS[name], params_for(1.0, 5)) for name in "abcd"})
    assert {name: result.tokens for name, result in results.items()} == expected("llama", "abcd", 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("step_tokens", [16, 33, 64])
def test_every_size_of_prefill_chunks(step_tokens: int, dtype: torch.dtype) -> None:
    engine = engine_for("llama", dtype, step_tokens=step_tokens)
    assert outputs(engine, "abcd", 1.0) == expected("llama", "abcd", 1.0, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_preemption_and_reused_prefixes(dtype: torch.dtype) -> None:
    engine = engine_for("llama", dtype, num_blocks=22)
    preempted = []
    original = engine.scheduler._preempt
    engine.scheduler._preempt = lambda sequence: (preempted.append(sequence), original(sequence))
    for _ in ("cold", "warm"):
        assert outputs(engine, "abcd", 1.0) == expected("llama", "abcd", 1.0, dtype)
    assert preempted
    assert engine.backend.kv.stats.hit_tokens > 0


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("invariant_draft", [True, False])
def test_a_draft_that_is_the_target_is_accepted_in_every_round(
    family: str, temperature: float, invariant_draft: bool
) -> None:
    """Down to the depth at which likelier side branches left no room for the main path."""
    engine = engine_for(family, invariant_draft=invariant_draft)
    reports: list[StepReport] = []
    engine.observers.append(reports.append)
    outputs(engine, "ac", temperature)
    drafted = [report for report in reports if report.drafted]
    assert sum(report.accepted > 0 for report in drafted) >= 0.95 * len(drafted)
