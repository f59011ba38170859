"""Output = plain decoding, token for token, for Medusa heads and both forms of multi-token prediction.

CASES kinds 03, 11, 31, 35 and 37: drafts accepted to the end, windows of 32 crossed, requests that end anywhere.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import run
from heads_engine import PROMPTS, chains_only, engine_for, expected, learned_heads, outputs, params_for, watch
from under_test import tiny_model

from gamaneh.control.survival import DraftSource
from gamaneh.heads.artifact import Artifact
from gamaneh.options import SamplingParams
from gamaneh.testing import TINY_CONFIGS, tiny_heads

HEADS: dict[str, tuple[str, dict[str, Any]]] = {
    "medusa": ("medusa", {"depth": 3}),
    "parallel": ("mtp", {"form": "parallel", "depth": 3}),
    "chained": ("mtp", {"form": "chained", "depth": 3}),
}


def heads(method: str, family: str = "llama", *, trees: bool = True) -> Artifact:
    kind, shape = HEADS[method]
    learned = learned_heads(family, kind, **shape)
    return learned if trees else chains_only(learned)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("names", ["a", "abcd"])
@pytest.mark.parametrize("trees", [True, False])
@pytest.mark.parametrize("method", HEADS)
def test_every_method_in_every_batch(method: str, trees: bool, names: str, temperature: float) -> None:
    engine = engine_for("llama", heads(method, trees=trees))
    reports = watch(engine)
    assert outputs(engine, names, temperature) == expected("llama", names, temperature)
    assert any(report.drafted for report in reports)


@pytest.mark.parametrize("method", HEADS)
def test_what_the_heads_know_is_accepted(method: str) -> None:
    engine = engine_for("llama", heads(method, trees=False))
    reports = watch(engine)
    outputs(engine, "ab", 0.0)
    accepted, drafted = (sum(getattr(report, name) for report in reports) for name in ("accepted", "drafted"))
    assert accepted > 0.5 * drafted


@pytest.mark.parametrize("method", HEADS)
def test_the_controller_begins_with_what_was_measured_of_the_heads(method: str) -> None:
    known = replace(heads(method), quality={"survival": {"all": [0.75, 0.25]}})
    acceptance = engine_for("llama", known).controller.survival
    assert acceptance.survival(DraftSource(known.kind), "new", 2) == pytest.approx([0.75, 0.25])


@pytest.mark.parametrize("method", HEADS)
@pytest.mark.parametrize("family", [family for family in TINY_CONFIGS if family != "llama"])
def test_every_family(family: str, method: str) -> None:
    """Random heads: nearly all that they guess is refused."""
    kind, shape = HEADS[method]
    engine = engine_for(family, tiny_heads(tiny_model(family), kind, **shape))
    assert outputs(engine, "abcd", 1.0) == expected(family, "abcd", 1.0)


@pytest.mark.parametrize("method", HEADS)
def test_a_window_is_crossed(method: str) -> None:
    engine = engine_for("mistral", heads(method, "mistral"))
    reports = watch(engine)
    assert outputs(engine, "abcd", 0.0) == expected("mistral", "abcd", 0.0)
    assert sum(report.accepted for report in reports) > 0


@pytest.mark.parametrize("k", [None, 1, 2])
@pytest.mark.parametrize("method", HEADS)
def test_every_draft_length(method: str, k: int | None) -> None:
    engine = engine_for("llama", heads(method), k=k)
    assert outputs(engine, "abcd", 1.0) == expected("llama", "abcd", 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("step_tokens", [16, 33])
@pytest.mark.parametrize("method", HEADS)
def test_every_size_of_prefill_chunks(method: str, step_tokens: int, dtype: torch.dtype) -> None:
    engine = engine_for("llama", heads(method), dtype, step_tokens=step_tokens)
    assert outputs(engine, "abcd", 0.0) == expected("llama", "abcd", 0.0, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("method", HEADS)
def test_preempted_requests_go_on_where_they_were(method: str, dtype: torch.dtype) -> None:
    engine = engine_for("llama", heads(method), dtype, num_blocks=20)
    preempted: list[object] = []
    original = engine.scheduler._preempt
    engine.scheduler._preempt = lambda sequence: (preempted.append(sequence), original(sequence))[1]  # type: ignore[method-assign]
    assert outputs(engine, "abcd", 0.0) == expected("llama", "abcd", 0.0, dtype)
    assert preempted


@pytest.mark.parametrize("method", HEADS)
def test_reused_prefixes_change_nothing(method: str) -> None:
    """Hidden states of reused tokens are not known; drafting begins behind them."""
    engine = engine_for("llama", heads(method), torch.bfloat16)
    for _ in ("cold", "warm"):
        assert outputs(engine, "abcd", 0.0) == expected("llama", "abcd", 0.0, torch.bfloat16)
    assert engine.backend.kv.stats.hit_tokens > 0


@pytest.mark.parametrize("method", HEADS)
def test_a_request_that_ends_inside_a_draft_frees_everything(method: str) -> None:
    known = expected("llama", "a", 0.0)["a"]
    engine = engine_for("llama", heads(method))
    params = SamplingParams(max_tokens=48, ignore_eos=True, stop_token_ids=(known[20],))
    (answer,) = run(engine, {"a": (PROMPTS["a"], params)}).values()
    assert answer.tokens == known[: known.index(known[20])]
    assert engine.backend.kv.pool.in_use == 0


@pytest.mark.parametrize("rule", ["match", "rejection", "block"])
@pytest.mark.parametrize("method", HEADS)
def test_greedy_requests_have_one_output_under_every_exact_rule(method: str, rule: str) -> None:
    engine = engine_for("llama", heads(method), rule=rule)
    assert outputs(engine, "abcd", 0.0) == expected("llama", "abcd", 0.0)


@pytest.mark.parametrize("method", HEADS)
def test_the_approximate_rule_takes_their_trees(method: str) -> None:
    engine = engine_for("llama", heads(method), rule="typical")
    reports = watch(engine)
    results = run(engine, {"a": (PROMPTS["a"], params_for(1.0))})
    assert len(results["a"].tokens) == 32
    assert {report.rule for report in reports} == {"typical"}


@pytest.mark.parametrize("method", HEADS)
def test_every_sampling_option_in_one_mixed_batch(method: str) -> None:
    options: dict[str, dict[str, Any]] = {
        "top_k": {"temperature": 1.0, "top_k": 20},
        "top_p": {"temperature": 1.3, "top_p": 0.8},
        "repetition": {"repetition_penalty": 1.3},
        "frequency": {"frequency_penalty": 1.2},
        "bias": {"logit_bias": {32: -100.0, 101: 3.0}},
        "bad words": {"bad_words": ((32,), (101, 32))},
        "hardly anything": {"bad_words": tuple((token,) for token in range(3, 256))},
        "min tokens": {"min_tokens": 20, "stop_token_ids": tuple(range(120))},
    }
    requests = {name: (PROMPTS["a"], SamplingParams(seed=9, max_tokens=24, **own)) for name, own in options.items()}
    mixed = run(engine_for("llama", heads(method)), requests)
    for name, request in requests.items():
        alone = run(engine_for("llama", None), {name: request})[name]
        assert mixed[name].outcome == alone.outcome, name
