"""Output = plain decoding, token for token, for EAGLE heads and for early exit, in chains and in trees.

CASES kinds 03, 25, 31, 35 and 37: drafts accepted to the end, caches that lost tokens, branches, windows of 32 crossed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import run
from heads_engine import PROMPTS, TEXT, expected, learned_heads, made_for, outputs, params_for, watch
from under_test import kept, tiny_model

from gamaneh.control.survival import DraftSource
from gamaneh.core import Use
from gamaneh.engine.assembly import build_engine
from gamaneh.engine.engine import Engine
from gamaneh.heads.artifact import Artifact
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.testing import TINY_CONFIGS, tiny_heads

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "eagle": ("eagle", {"depth": 3}),
    "eagle trees": ("eagle", {"depth": 3}),
    "block": ("block", {"depth": 3}),
    "block trees": ("block", {"depth": 3, "num_layers": 2}),
    "own exit": ("early_exit", {}),
    "trained exit": ("early_exit", {"num_layers": 1, "width": 16, "depth": 2}),
}
_OPTIONS: dict[str, dict[str, Any]] = {
    "eagle": {"min_confidence": 0.0, "draft_branching": 1},
    "eagle trees": {"min_confidence": 0.0, "draft_branching": 3},
    "block": {"min_confidence": 0.0, "draft_branching": 1},
    "block trees": {"min_confidence": 0.0, "draft_branching": 3},
    "own exit": {"min_confidence": 0.0, "exit_layer": 1},
    "trained exit": {"min_confidence": 0.0},
}
LONG = list(TEXT * 5)


@kept
def heads(method: str, family: str = "llama", *, known: bool = True) -> Artifact | None:
    """Heads that know some texts by heart, or random ones; None where the target's own head is used."""
    kind, shape = METHODS[method]
    if method == "own exit":
        return None
    return learned_heads(family, kind, **shape) if known else tiny_heads(tiny_model(family), kind, **shape)


def engine_for(
    method: str,
    family: str = "llama",
    dtype: torch.dtype = torch.float32,
    *,
    known: bool = True,
    k: int | None = 4,
    num_blocks: int = 96,
    step_tokens: int = 256,
    rule: str = "auto",
    own: Artifact | None = None,
) -> Engine:
    artifact = own or heads(method, family, known=known)
    speculation = SpeculationOptions(
        proposer=METHODS[method][0],
        draft_length=k,
        rule=rule,
        proposer_options=_OPTIONS[method],
    )
    options = EngineOptions(max_batch=8, step_tokens=step_tokens, kv_blocks=num_blocks, invariant=True)
    target = tiny_model(family, dtype=dtype)
    engine = build_engine(target, None, speculation, options, heads=[made_for(target, artifact)] if artifact else [])
    engine.clock = lambda: 0.0  # beside such a target every draft would be slow
    return engine


@pytest.mark.parametrize("method", ["eagle", "trained exit"])
def test_the_controller_begins_with_what_was_measured_of_the_heads(method: str) -> None:
    artifact = heads(method)
    assert artifact is not None
    known = replace(artifact, quality={"survival": {"all": [0.75, 0.25]}})
    acceptance = engine_for(method, own=known).controller.survival
    assert acceptance.survival(DraftSource(known.kind), "new", 2) == pytest.approx([0.75, 0.25])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("names", ["a", "abcd"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_in_every_batch(method: str, names: str, temperature: float) -> None:
    engine = engine_for(method)
    reports = watch(engine)
    assert outputs(engine, names, temperature) == expected("llama", names, temperature)
    assert any(report.drafted for report in reports)
    assert not engine.quarantine.counts


@pytest.mark.parametrize("method", ["eagle", "eagle trees", "block", "block trees"])
def test_what_the_head_knows_is_accepted(method: str) -> None:
    engine = engine_for(method)
    reports = watch(engine)
    outputs(engine, "ab", 0.0)
    assert sum(report.accepted for report in reports) > 1.5 * len(reports)


def test_trees_branch() -> None:
    engine = engine_for("eagle trees")
    reports = watch(engine)
    outputs(engine, "abcd", 1.0)
    assert max(report.drafted for report in reports) > max(report.depth for report in reports)


@pytest.mark.parametrize("method", ["eagle trees", "own exit"])
@pytest.mark.parametrize("family", [family for family in TINY_CONFIGS if family != "llama"])
def test_every_family(family: str, method: str) -> None:
    """Random heads: nearly all that they guess is refused."""
    engine = engine_for(method, family, known=False)
    assert outputs(engine, "abcd", 1.0) == expected(family, "abcd", 1.0)


@pytest.mark.parametrize("k", [None, 1, 15])
@pytest.mark.parametrize("method", METHODS)
def test_every_draft_length(method: str, k: int | None) -> None:
    assert outputs(engine_for(method, k=k), "abcd", 1.0) == expected("llama", "abcd", 1.0)


@pytest.mark.parametrize(("step_tokens", "dtype"), [(8, torch.bfloat16), (33, torch.float32)])
@pytest.mark.parametrize("method", METHODS)
def test_every_size_of_prefill_chunks(method: str, step_tokens: int, dtype: torch.dtype) -> None:
    engine = engine_for(method, dtype=dtype, step_tokens=step_tokens)
    assert outputs(engine, "abcd", 1.0) == expected("llama", "abcd", 1.0, dtype)


@pytest.mark.parametrize("method", METHODS)
def test_preempted_requests_go_on_where_they_were(method: str) -> None:
    engine = engine_for(method, dtype=torch.bfloat16, num_blocks=20)
    preempted: list[object] = []
    original = engine.scheduler._preempt
    engine.scheduler._preempt = lambda sequence: (preempted.append(sequence), original(sequence))[1]  # type: ignore[method-assign]
    assert outputs(engine, "abcd", 0.0) == expected("llama", "abcd", 0.0, torch.bfloat16)
    assert preempted


@pytest.mark.parametrize("method", METHODS)
def test_reused_prefixes_change_nothing(method: str) -> None:
    """Hidden states of reused tokens are not known to heads; the exit reads the cache that was reused."""
    engine = engine_for(method, dtype=torch.bfloat16)
    for _ in ("cold", "warm"):
        assert outputs(engine, "abcd", 1.0) == expected("llama", "abcd", 1.0, torch.bfloat16)
    assert engine.backend.kv.stats.hit_tokens > 0


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("family", ["mistral", "gemma3"])
def test_long_contexts_over_a_sliding_window(family: str, method: str) -> None:
    request = {"long": (LONG, params_for(1.0))}
    plain = run(engine_for(method, family, known=False, k=0), request)["long"].tokens
    assert run(engine_for(method, family, known=False), request)["long"].tokens == plain


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("method", METHODS)
def test_greedy_requests_have_one_output_under_every_exact_rule(method: str, rule: str) -> None:
    assert outputs(engine_for(method, rule=rule), "abcd", 0.0) == expected("llama", "abcd", 0.0)


@pytest.mark.parametrize("method", METHODS)
def test_every_sampling_option_in_one_mixed_batch(method: str) -> None:
    """CASES kind 11; one request is left hardly any token that the heads know."""
    options: dict[str, dict[str, Any]] = {
        "top_k": {"temperature": 1.0, "top_k": 20},
        "top_p": {"temperature": 1.3, "top_p": 0.8},
        "repetition": {"repetition_penalty": 1.3},
        "bias": {"logit_bias": {32: -100.0, 101: 3.0}},
        "hardly anything": {"bad_words": tuple((token,) for token in range(3, 256)), "temperature": 0.7},
        "min tokens": {"min_tokens": 20, "stop_token_ids": tuple(range(120))},
    }
    requests = {name: (PROMPTS["a"], SamplingParams(seed=9, max_tokens=24, **own)) for name, own in options.items()}
    reduced = None if method == "own exit" else reduced_heads(method)
    mixed = run(engine := engine_for(method, own=reduced), requests)
    for name, request in requests.items():
        alone = run(engine_for(method, k=0), {name: request})[name]
        assert mixed[name].outcome == alone.outcome, name
    assert not engine.quarantine.counts


def reduced_heads(method: str) -> Artifact:
    kind, shape = METHODS[method]
    return tiny_heads(tiny_model("llama"), kind, draft_vocab=30, **shape)


@pytest.mark.parametrize("method", ["eagle", "eagle trees"])
def test_the_first_candidate_is_drawn_with_the_target_s_noise(method: str) -> None:
    engine = engine_for(method)
    proposer, uses = engine.proposers["eagle"], set()
    original = proposer.propose
    proposer.propose = lambda rows: (uses.update(row.use for row in rows), original(rows))[1]  # type: ignore[method-assign]
    outputs(engine, "a", 1.0)
    assert uses == {Use.TARGET}


@pytest.mark.parametrize("method", ["eagle", "eagle trees"])
def test_rows_of_requests_that_are_gone_are_free_again(method: str) -> None:
    engine = engine_for(method)
    outputs(engine, "abcd", 1.0)
    cache = engine.proposers["eagle"].runner.cache  # type: ignore[attr-defined]
    assert sorted(cache._free) == list(range(cache.num_rows))
