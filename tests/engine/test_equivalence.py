"""Output = plain decoding, token for token, for every proposer on real (tiny) decoders.

Shape-invariant execution makes the logits the same bits, so that nothing less than equality will do.
"""

from __future__ import annotations

import pytest
import torch
from conftest import assert_idle, run
from under_test import kept, tiny_model

from gamaneh.backends.choose import backend_for
from gamaneh.core import StepReport
from gamaneh.engine.assembly import assemble
from gamaneh.engine.engine import Engine
from gamaneh.models.loading import LoadedModel
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.proposers.recipe import Ingredients, ReadyModel
from gamaneh.proposers.registry import build_proposers
from gamaneh.testing import TINY_CONFIGS, ByteTokenizer

TEXT = b"the cat sat on the mat and the cat sat on the hat; "
PROMPTS = {"a": list(TEXT * 2), "b": list(TEXT[:9]), "c": [7], "d": list(TEXT * 3)[5:130]}
DRAFT_SEEDS = {"self": 0, "hostile": 1}


def ready(model: LoadedModel, *, num_blocks: int, invariant: bool, prefix_cache: bool) -> ReadyModel:
    return ReadyModel(model, backend_for(model, num_blocks, 16, invariant=invariant, prefix_cache=prefix_cache))


def engine_for(
    family: str,
    proposer: str,
    dtype: torch.dtype,
    *,
    draft: str = "self",
    k: int | None = 4,
    num_blocks: int = 64,
    step_tokens: int = 256,
    rule: str = "auto",
) -> Engine:
    target = ready(tiny_model(family, dtype=dtype), num_blocks=num_blocks, invariant=True, prefix_cache=True)
    speculation = SpeculationOptions(
        proposer=proposer, draft_length=k, rule=rule, proposer_options={"min_confidence": 0.0}
    )
    draft_model = tiny_model(family, seed=DRAFT_SEEDS[draft], dtype=dtype)
    ingredients = Ingredients(
        speculation, target, ready(draft_model, num_blocks=64, invariant=True, prefix_cache=False)
    )
    return assemble(
        target.backend,
        ByteTokenizer(),
        proposers=build_proposers(ingredients),
        speculation=speculation,
        options=EngineOptions(max_batch=8, step_tokens=step_tokens),
    )


def params_for(temperature: float, seed: int) -> SamplingParams:
    return SamplingParams(temperature=temperature, seed=seed, max_tokens=48, ignore_eos=True)


@kept
def plain_outputs(family: str, temperature: float, dtype: torch.dtype) -> dict[str, list[int]]:
    """Each prompt alone, in one piece, without speculation."""
    return {
        name: run(engine_for(family, "none", dtype), {name: (prompt, params_for(temperature, 5))})[name].tokens
        for name, prompt in PROMPTS.items()
    }


def outputs(engine: Engine, names: str, temperature: float) -> dict[str, list[int]]:
    results = run(engine, {name: (PROMPTS[name], params_for(temperature, 5)) for name in names})
    assert_idle(engine)
    return {name: result.tokens for name, result in results.items()}


def expected(family: str, names: str, temperature: float, dtype: torch.dtype = torch.float32) -> dict[str, list[int]]:
    plain = plain_outputs(family, temperature, dtype)
    return {name: plain[name] for name in names}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("names", ["a", "abcd"])
@pytest.mark.parametrize(
    ("proposer", "draft"), [("lookup", "self"), ("draft_model", "self"), ("draft_model", "hostile")]
)
@pytest.mark.parametrize("family", TINY_CONFIGS)
def test_every_family_and_proposer(family: str, proposer: str, draft: str, names: str, temperature: float) -> None:
    engine = engine_for(family, proposer, torch.float32, draft=draft)
    assert outputs(engine, names, temperature) == expected(family, names, temperature)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("k", [None, 1, 7, 15])
def test_every_draft_length(k: int | None, temperature: float) -> None:
    engine = engine_for("llama", "draft_model", torch.float32, k=k)
    assert outputs(engine, "abcd", temperature) == expected("llama", "abcd", temperature)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("step_tokens", [8, 33, 64])
def test_every_size_of_prefill_chunks(step_tokens: int, dtype: torch.dtype) -> None:
    engine = engine_for("llama", "draft_model", dtype, step_tokens=step_tokens)
    assert outputs(engine, "abcd", 1.0) == expected("llama", "abcd", 1.0, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("proposer", ["none", "lookup", "draft_model"])
def test_preempted_requests_go_on_where_they_were(proposer: str, dtype: torch.dtype) -> None:
    engine = engine_for("llama", proposer, dtype, num_blocks=20)
    preempted = []
    original = engine.scheduler._preempt
    engine.scheduler._preempt = lambda sequence: (preempted.append(sequence), original(sequence))
    assert outputs(engine, "abcd", 1.0) == expected("llama", "abcd", 1.0, dtype)
    assert preempted


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reused_prefixes_have_the_bits_of_computed_ones(dtype: torch.dtype) -> None:
    engine = engine_for("llama", "draft_model", dtype)
    for _ in ("cold", "warm"):
        assert outputs(engine, "abcd", 1.0) == expected("llama", "abcd", 1.0, dtype)
    assert engine.backend.kv.stats.hit_tokens > 0


def test_generated_tokens_are_not_reused_as_a_prompt() -> None:
    """They were computed in other tiles, so their bits may differ from those of prompt rows."""
    engine = engine_for("llama", "none", torch.bfloat16)
    first = outputs(engine, "a", 0.0)["a"]
    turn = [*PROMPTS["a"], *first, *TEXT]
    alone = engine_for("llama", "none", torch.bfloat16)
    again = run(engine, {"turn": (turn, params_for(0.0, 5))})["turn"].tokens
    assert again == run(alone, {"turn": (turn, params_for(0.0, 5))})["turn"].tokens


@pytest.mark.parametrize("family", ["llama", "mistral", "gemma3"])
def test_a_draft_that_is_the_target_is_always_accepted(family: str) -> None:
    """CASES kinds 03, 35 and 37, across the border of a sliding window of 32."""
    engine = engine_for(family, "draft_model", torch.float32)
    reports: list[StepReport] = []
    engine.observers.append(reports.append)
    outputs(engine, "ac", 1.0)
    assert reports
    assert all(report.accepted == report.drafted for report in reports)


@pytest.mark.parametrize("order", ["abcd", "dcba", "bdac"])
def test_the_order_of_arrival_changes_nothing(order: str) -> None:
    engine = engine_for("qwen2", "draft_model", torch.bfloat16, k=None)
    assert outputs(engine, order, 1.0) == expected("qwen2", order, 1.0, torch.bfloat16)


PROCESSORS = {
    "top_k": {"temperature": 1.0, "top_k": 20},
    "top_p": {"temperature": 1.3, "top_p": 0.8},
    "min_p": {"temperature": 1.0, "min_p": 0.1},
    "repetition": {"repetition_penalty": 1.3},
    "presence": {"temperature": 0.8, "presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 1.2},
    "bias": {"logit_bias": {32: -100.0, 101: 3.0}},
    "bad words": {"bad_words": ((32,), (101, 32))},
    "min tokens": {"min_tokens": 20, "stop_token_ids": tuple(range(120))},
    "logprobs": {"temperature": 1.0, "logprobs": 3},
    "stop": {"stop": ("\ufffd\ufffd", "a", "e")},
}


@pytest.mark.parametrize("proposer", ["lookup", "draft_model"])
def test_every_sampling_option_in_one_mixed_batch(proposer: str) -> None:
    """CASES kind 11: at each draft position, and only in the row that asked for it."""
    requests = {
        name: (PROMPTS["a"], SamplingParams(seed=9, max_tokens=40, **options)) for name, options in PROCESSORS.items()
    }
    mixed = run(engine_for("llama", proposer, torch.float32), requests)
    for name, request in requests.items():
        alone = run(engine_for("llama", "none", torch.float32), {name: request})[name]
        assert mixed[name].outcome == alone.outcome, name
        assert [e for o in mixed[name].outputs for e in o.logprobs] == [e for o in alone.outputs for e in o.logprobs]


def test_a_banned_token_never_appears_and_a_forced_one_always() -> None:
    engine = engine_for("llama", "draft_model", torch.float32)
    params = {
        "banned": SamplingParams(logit_bias={int(token): -100.0 for token in range(128)}, max_tokens=15),
        "forced": SamplingParams(logit_bias={65: 100.0}, max_tokens=15),
    }
    results = run(engine, {name: (PROMPTS["b"], own) for name, own in params.items()})
    assert all(token >= 128 for token in results["banned"].tokens)
    assert results["forced"].tokens == [65] * 15
