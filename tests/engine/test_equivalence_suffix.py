"""Suffix drafts and merged drafts leave the output what plain decoding makes of it, on real (tiny) decoders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from conftest import assert_idle, drain, run
from heads_engine import learned_heads, made_for
from test_distribution import CELLS, TARGET, p_values
from test_equivalence import PROCESSORS, PROMPTS, TEXT, params_for, ready
from under_test import kept, tiny_model

from gamaneh.backends.paged import PagedBackend
from gamaneh.core import Request, StepReport
from gamaneh.engine.assembly import assemble, build_engine
from gamaneh.engine.engine import Engine
from gamaneh.kv import BlockPool, KVManager
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.proposers.draft_model import DraftModelProposer
from gamaneh.proposers.portfolio import PortfolioProposer
from gamaneh.proposers.recipe import Ingredients
from gamaneh.proposers.registry import build_proposers
from gamaneh.proposers.suffix import SuffixProposer
from gamaneh.proposers.suffix_store import SharedStore
from gamaneh.testing import TINY_CONFIGS, ByteTokenizer, ScriptedRunner, constant

PROPOSERS = ("suffix", "portfolio")
LONG = list(TEXT * 5)


def engine_for(
    family: str,
    proposer: str,
    dtype: torch.dtype = torch.float32,
    *,
    k: int | None = 4,
    num_blocks: int = 96,
    step_tokens: int = 256,
    rule: str = "auto",
) -> Engine:
    """With a draft model of other weights, so that the members of a portfolio differ."""
    target = ready(tiny_model(family, dtype=dtype), num_blocks=num_blocks, invariant=True, prefix_cache=True)
    draft_model = ready(tiny_model(family, seed=1, dtype=dtype), num_blocks=96, invariant=True, prefix_cache=False)
    speculation = SpeculationOptions(
        proposer=proposer, draft_length=k, rule=rule, proposer_options={"min_confidence": 0.0}
    )
    return assemble(
        target.backend,
        ByteTokenizer(),
        proposers=build_proposers(Ingredients(speculation, target, draft_model)),
        speculation=speculation,
        options=EngineOptions(max_batch=8, step_tokens=step_tokens),
        clock=lambda: 0.0,  # beside such a target every draft would be slow
    )


@kept
def plain(family: str, temperature: float, dtype: torch.dtype = torch.float32) -> Mapping[str, list[int]]:
    """Each prompt alone, in one piece, without speculation."""
    prompts = {**PROMPTS, "long": LONG}
    return {
        name: run(engine_for(family, "none", dtype), {name: (prompt, params_for(temperature, 5))})[name].tokens
        for name, prompt in prompts.items()
    }


def outputs(engine: Engine, names: str | list[str], temperature: float) -> dict[str, list[int]]:
    prompts = {**PROMPTS, "long": LONG}
    results = run(engine, {name: (prompts[name], params_for(temperature, 5)) for name in names})
    assert_idle(engine)
    return {name: result.tokens for name, result in results.items()}


def expected(
    family: str, names: str | list[str], temperature: float, dtype: torch.dtype = torch.float32
) -> dict[str, list[int]]:
    return {name: plain(family, temperature, dtype)[name] for name in names}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("names", ["a", "abcd"])
@pytest.mark.parametrize("proposer", PROPOSERS)
@pytest.mark.parametrize("family", TINY_CONFIGS)
def test_every_family(family: str, proposer: str, names: str, temperature: float) -> None:
    engine = engine_for(family, proposer)
    assert outputs(engine, names, temperature) == expected(family, names, temperature)


@pytest.mark.parametrize("proposer", PROPOSERS)
@pytest.mark.parametrize("k", [None, 1, 7, 15])
def test_every_draft_length(k: int | None, proposer: str) -> None:
    engine = engine_for("llama", proposer, k=k)
    assert outputs(engine, "abcd", 1.0) == expected("llama", "abcd", 1.0)


@pytest.mark.parametrize("proposer", PROPOSERS)
@pytest.mark.parametrize("step_tokens", [8, 33, 64])
def test_every_size_of_prefill_chunks(step_tokens: int, proposer: str) -> None:
    engine = engine_for("llama", proposer, torch.bfloat16, step_tokens=step_tokens)
    assert outputs(engine, "abcd", 1.0) == expected("llama", "abcd", 1.0, torch.bfloat16)


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_preempted_requests_go_on_where_they_were(proposer: str) -> None:
    engine = engine_for("llama", proposer, num_blocks=20)
    preempted = []
    original = engine.scheduler._preempt
    engine.scheduler._preempt = lambda sequence: (preempted.append(sequence), original(sequence))
    assert outputs(engine, "abcd", 1.0) == expected("llama", "abcd", 1.0)
    assert preempted


@pytest.mark.parametrize("proposer", PROPOSERS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_that_are_known_already_come_again(proposer: str, temperature: float) -> None:
    """Prefixes are reused, and every draft is the answer of the first time."""
    engine = engine_for("llama", proposer)
    reports: list[StepReport] = []
    engine.observers.append(reports.append)
    rounds = []
    for _ in ("cold", "warm"):
        reports.clear()
        assert outputs(engine, "abcd", temperature) == expected("llama", "abcd", temperature)
        rounds.append(len(reports))
    assert engine.backend.kv.stats.hit_tokens > 0
    assert rounds[1] < rounds[0] / 2


@pytest.mark.parametrize("family", ["mistral", "gemma3"])
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_long_contexts_over_a_sliding_window(proposer: str, family: str) -> None:
    """CASES kind 37: contexts of 250 tokens, windows of 32."""
    engine = engine_for(family, proposer)
    assert outputs(engine, ["long", "c"], 1.0) == expected(family, ["long", "c"], 1.0)


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_every_sampling_option_in_one_mixed_batch(proposer: str) -> None:
    """CASES kind 11."""
    requests = {
        name: (PROMPTS["a"], SamplingParams(seed=9, max_tokens=40, **options)) for name, options in PROCESSORS.items()
    }
    mixed = run(engine_for("llama", proposer), requests)
    for name, request in requests.items():
        alone = run(engine_for("llama", "none"), {name: request})[name]
        assert mixed[name].outcome == alone.outcome, name


HEADS: Mapping[str, Mapping[str, Any]] = {
    "medusa": {"depth": 3},
    "mtp": {"form": "chained", "depth": 3},
    "eagle": {"depth": 3},
    "early_exit": {"num_layers": 1, "width": 16, "depth": 2},
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("names", ["a", "abcd"])
@pytest.mark.parametrize("wanted", ["portfolio", "auto"])
def test_every_proposer_at_once(wanted: str, names: str, temperature: float) -> None:
    """A draft model and heads of all kinds, that know some texts by heart."""
    speculation = SpeculationOptions(
        proposer=wanted, draft_length=4, proposer_options={"min_confidence": 0.0, "merge": True}
    )
    target = tiny_model("llama")
    heads = [made_for(target, learned_heads("llama", kind, **shape)) for kind, shape in HEADS.items()]
    options = EngineOptions(max_batch=8, step_tokens=256, kv_blocks=96, invariant=True)
    engine = build_engine(target, tiny_model("llama", seed=1), speculation, options, heads=heads)
    engine.clock = lambda: 0.0
    reports: list[StepReport] = []
    engine.observers.append(reports.append)
    assert outputs(engine, names, temperature) == expected("llama", names, temperature)
    assert engine.quarantine.counts == {}
    if wanted == "portfolio":
        assert {"draft_model", *HEADS} <= {share.proposer for report in reports for share in report.shares}


def test_a_salt_decides_who_is_shown_an_answer() -> None:
    engine = engine_for("llama", "suffix")
    reports: list[StepReport] = []
    engine.observers.append(reports.append)
    accepted = {}
    for salt in ("alice", "bob", "alice"):
        reports.clear()
        engine.add(Request(PROMPTS["b"], params_for(1.0, 5), salt=salt))
        drain(engine)
        accepted.setdefault(salt, []).append(sum(report.accepted for report in reports))
    assert accepted["alice"][0] == accepted["bob"][0] < accepted["alice"][1]


def test_reports_say_whose_candidates_were_kept() -> None:
    engine = engine_for("llama", "portfolio")
    reports: list[StepReport] = []
    engine.observers.append(reports.append)
    outputs(engine, "abcd", 0.0)
    shares = [share for report in reports for share in report.shares]
    assert {share.proposer for share in shares} == {"draft_model", "lookup", "suffix"}
    for report in reports:
        assert sum(share.drafted for share in report.shares) == report.drafted
        assert sum(share.accepted for share in report.shares) == report.accepted


def test_merged_drafts_do_branch() -> None:
    engine = engine_for("llama", "portfolio")
    reports: list[StepReport] = []
    engine.observers.append(reports.append)
    outputs(engine, "abcd", 0.0)
    assert any(report.drafted > report.depth for report in reports)


def sampling_engine(rule: str, proposer: str) -> Engine:
    """Over a scripted target of four tokens: suffix drafts alone, or merged with those of a bad draft model."""
    target, draft = (
        ScriptedRunner(constant(probs), 4, num_blocks=400, block_size=4) for probs in (TARGET, [0.7, 0.1, 0.1, 0.1])
    )
    kv, draft_kv = (KVManager(BlockPool(400, 4, prefix_cache=False), runner.cache) for runner in (target, draft))
    suffix = SuffixProposer(SharedStore(500, 8), max_context=8)
    model = DraftModelProposer(PagedBackend(draft, draft_kv), vocab_size=4)
    merged = PortfolioProposer({"suffix": suffix, "draft_model": model})
    speculation = SpeculationOptions(proposer=proposer, draft_length=3, rule=rule)
    return assemble(
        PagedBackend(target, kv),
        ByteTokenizer(),
        proposers={each.name: each for each in (suffix, merged)},
        speculation=speculation,
        options=EngineOptions(max_batch=32, step_tokens=512),
    )


@pytest.mark.parametrize("cell", ["plain", "top_p"])
@pytest.mark.parametrize("rule", ["match", "rejection", "block"])
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_every_exact_rule_follows_the_target(proposer: str, rule: str, cell: str) -> None:
    """CASES kinds 05 and 19."""
    params, law = CELLS[cell]
    assert min(p_values(sampling_engine(rule, proposer), law, **params)) > 0.001
