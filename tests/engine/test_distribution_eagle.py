"""Sampled output with EAGLE heads and with early exit follows the target's distribution; a planted fault is found.

The target knows eight tokens, so that the law of its outputs can be computed in full.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
from conftest import drain
from scipy.stats import chisquare

from gamaneh.core import Request
from gamaneh.engine.assembly import build_engine
from gamaneh.engine.engine import Engine
from gamaneh.kv import KVCache
from gamaneh.kv.placing import Placed
from gamaneh.models.loading import LoadedModel
from gamaneh.models.runner import DecoderRunner
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.proposers import tree
from gamaneh.testing import TINY_CONFIGS, tiny_heads, tiny_model

VOCAB, PROMPT, LENGTH, REQUESTS = 8, [3, 5, 1], 4, 1200
KINDS = {"eagle": {"depth": 2}, "block": {"depth": 2}, "early_exit": {"num_layers": 1, "width": 8}}


@cache
def target() -> LoadedModel:
    return tiny_model(config=replace(TINY_CONFIGS["llama"], vocab_size=VOCAB, eos_ids=()))


def engine_with(kind: str, rule: str, **more: int) -> Engine:
    options = EngineOptions(max_batch=64, step_tokens=512, kv_blocks=400, invariant=False)
    own = {"min_confidence": 0.0, **more}
    speculation = SpeculationOptions(proposer=kind, draft_length=2, rule=rule, proposer_options=own)  # type: ignore[arg-type]
    heads = tiny_heads(target(), kind, seed=3, **KINDS[kind])
    engine = build_engine(target(), None, speculation, options, heads=[heads])
    engine.clock = lambda: 0.0
    return engine


@cache
def laws() -> list[list[float]]:
    """For each position of the output, the chance of each token."""
    chances = {(): 1.0}
    found = []
    for _ in range(LENGTH):
        rows = next_chances(list(chances))
        chances = {
            (*prefix, token): chance * row[token]
            for (prefix, chance), row in zip(chances.items(), rows, strict=True)
            for token in range(VOCAB)
        }
        found.append([sum(chance for text, chance in chances.items() if text[-1] == last) for last in range(VOCAB)])
    return found


def next_chances(prefixes: Sequence[tuple[int, ...]]) -> list[list[float]]:
    config, decoder = target().config, target().decoder
    cache_ = KVCache(config.num_layers, len(prefixes), 16, config.num_kv_heads, config.head_dim, decoder.dtype)
    runner = DecoderRunner(decoder, cache_, invariant=False)
    feeds = []
    for at, prefix in enumerate(prefixes, start=1):
        text = [*PROMPT, *prefix]
        feeds.append(Placed(text, 0, len(PROMPT), range(16 * at, 16 * at + len(text))))
    return [logits[-1].double().softmax(0).tolist() for logits in runner.forward(feeds).logits]


def p_values(engine: Engine) -> list[float]:
    """One for each position of the output, over many requests with different seeds."""
    for seed in range(REQUESTS):
        engine.add(Request(PROMPT, SamplingParams(temperature=1.0, seed=seed, max_tokens=LENGTH, ignore_eos=True)))
    answers = list(drain(engine).values())
    values = []
    for position, law in enumerate(laws()):
        counts = Counter(answer.tokens[position] for answer in answers)
        expected = [REQUESTS * chance for chance in law]
        values.append(chisquare([counts[token] for token in range(VOCAB)], expected).pvalue)
    return values


def test_the_law_leaves_something_to_chance() -> None:
    assert all(max(law) < 0.9 for law in laws())


@pytest.mark.parametrize("rule", ["match", "rejection", "block"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_exact_rule_follows_the_target(kind: str, rule: str) -> None:
    """CASES kinds 05 and 19."""
    engine = engine_with(kind, rule)
    accepted: list[int] = []
    engine.observers.append(lambda report: accepted.append(report.accepted))
    assert min(p_values(engine)) > 0.001
    assert 0 < sum(accepted) < 2 * len(accepted)


def test_trees_follow_the_target_as_well() -> None:
    assert min(p_values(engine_with("eagle", "match", draft_branching=3))) > 0.001


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("kind", ["eagle", "block"])
def test_soft_probabilities_for_a_greedy_draft_are_found_out(
    kind: str, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: the draft takes its best token, but the rule is told that it sampled."""
    monkeypatch.setattr(tree, "pick", lambda row, scores, position: int(scores.argmax()))
    assert min(p_values(engine_with(kind, rule))) < 0.001
