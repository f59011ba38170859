"""Sampled output with heads follows the target's distribution, though they draft from a part of its vocabulary."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from conftest import drain
from heads_engine import text_batch
from scipy.stats import chisquare

from gamaneh.core import Request
from gamaneh.engine.assembly import build_engine
from gamaneh.engine.engine import Engine
from gamaneh.heads.artifact import Artifact
from gamaneh.models.loading import LoadedModel
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.proposers.tree import TreeBuilder
from gamaneh.testing import TINY_CONFIGS, tiny_heads, tiny_model

VOCAB, REQUESTS, LENGTH = 4, 500, 4
PROMPT = [1, 2]
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "medusa": ("medusa", {"depth": 3}),
    "chained": ("mtp", {"form": "chained", "depth": 3}),
}


@cache
def target() -> LoadedModel:
    """Four tokens, none of which is certain."""
    model = tiny_model(config=replace(TINY_CONFIGS["llama"], vocab_size=VOCAB, eos_ids=()))
    model.decoder.norm.mul_(0.3)
    return model


def heads(method: str) -> Artifact:
    """Three of the four tokens can be drafted."""
    kind, shape = METHODS[method]
    return tiny_heads(target(), kind, draft_vocab=3, **shape)


def engine_with(method: str, rule: str) -> Engine:
    artifact = heads(method)
    speculation = SpeculationOptions(
        proposer=artifact.kind,
        draft_length=3,
        rule=rule,  # type: ignore[arg-type]
        proposer_options={} if artifact.kind == "medusa" else {"min_confidence": 0.0},
    )
    options = EngineOptions(max_batch=32, step_tokens=512, kv_blocks=64, invariant=False)
    return build_engine(target(), None, speculation, options, heads=[artifact])


@cache
def laws(temperature: float, top_k: int) -> list[list[float]]:
    """The distribution of each position of the output, by enumeration of all that may come before it."""
    weights = {(): 1.0}
    expected = []
    for _ in range(LENGTH):
        following = {path: _following([*PROMPT, *path], temperature, top_k) for path in weights}
        weights = {
            (*path, token): weight * following[path][token]
            for path, weight in weights.items()
            for token in range(VOCAB)
        }
        expected.append(
            [sum(weight for path, weight in weights.items() if path[-1] == token) for token in range(VOCAB)]
        )
    return expected


def _following(tokens: list[int], temperature: float, top_k: int) -> list[float]:
    hidden = text_batch(target(), tokens, [target().config.num_layers]).hidden[0, -1]
    scores = target().decoder.logits(hidden, [1])[0] / temperature
    if top_k:
        scores[scores < scores.topk(top_k).values[-1]] = -torch.inf
    probs: list[float] = scores.double().softmax(0).tolist()
    return probs


def p_values(engine: Engine, temperature: float, top_k: int) -> Iterator[float]:
    """One for each position of the output, over many requests with different seeds."""
    for seed in range(REQUESTS):
        params = SamplingParams(seed=seed, max_tokens=LENGTH, temperature=temperature, top_k=top_k, ignore_eos=True)
        engine.add(Request(PROMPT, params))
    answers = drain(engine).values()
    for position, law in enumerate(laws(temperature, top_k)):
        counts = Counter(answer.tokens[position] for answer in answers)
        support = [token for token, prob in enumerate(law) if prob > 0]
        assert set(counts) <= set(support)
        yield chisquare([counts[token] for token in support], [REQUESTS * law[token] for token in support]).pvalue


@pytest.mark.parametrize(("temperature", "top_k"), [(1.0, 0), (0.8, 2)])
@pytest.mark.parametrize(("method", "rule"), list(itertools.product(METHODS, ["match", "rejection", "block"])))
def test_every_exact_rule_follows_the_target(method: str, rule: str, temperature: float, top_k: int) -> None:
    """CASES kinds 05 and 19."""
    assert min(p_values(engine_with(method, rule), temperature, top_k)) > 0.001


@pytest.mark.parametrize(("method", "rule"), list(itertools.product(METHODS, ["rejection", "block"])))
def test_a_draft_that_was_not_drawn_as_it_says_is_found_out(
    method: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: heads take their best token, but the rule is told that they sampled."""
    original = TreeBuilder.grow

    def grow(chain: TreeBuilder, logits: list[torch.Tensor]) -> None:
        original(chain, logits)
        chain.tokens[-1] = int(logits[0].argmax())

    monkeypatch.setattr(TreeBuilder, "grow", grow)
    assert min(p_values(engine_with(method, rule), 1.0, 0)) < 0.001
