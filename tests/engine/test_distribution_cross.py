"""Sampled output follows the target's law when drafts are drawn from the tokens that both models have."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from conftest import drain
from scipy.stats import chisquare

from gamaneh.backends.paged import PagedBackend
from gamaneh.core import Request, StepReport
from gamaneh.engine.assembly import assemble
from gamaneh.engine.engine import Engine
from gamaneh.kv import BlockPool, KVManager
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.proposers import tree
from gamaneh.proposers.bridge import TokenGrowth
from gamaneh.proposers.recipe import Ingredients, ReadyModel
from gamaneh.proposers.registry import build_proposers
from gamaneh.testing import PieceTokenizer, ScriptedRunner, constant, tiny_model

SAMPLE = [*"A sample, two lines:\nit must come back."]  # what the bridges try themselves on
LETTERS = sorted(set(SAMPLE) - set("amles"))
OURS = PieceTokenizer([*"amles", *LETTERS, "ma"], special=("<end>",))
THEIRS = PieceTokenizer(["le", *"selam", *LETTERS], special=("<eos>",))
TARGET = {"a": 0.35, "m": 0.25, "l": 0.2, "ma": 0.15, "e": 0.05}
DRAFT = {"s": 0.3, "le": 0.3, "a": 0.1, "m": 0.2, "e": 0.1}
REQUESTS, LENGTH = 600, 4


def probs(tokenizer: PieceTokenizer, law: dict[str, float]) -> list[float]:
    return [law.get(tokenizer.token_text(token), 0.0) for token in range(tokenizer.vocab_size)]


def scripted(tokenizer: PieceTokenizer, law: dict[str, float]) -> ReadyModel:
    runner = ScriptedRunner(constant(probs(tokenizer, law)), tokenizer.vocab_size, num_blocks=400, block_size=4)
    model = replace(tiny_model(), tokenizer=tokenizer)
    return ReadyModel(model, PagedBackend(runner, KVManager(BlockPool(400, 4, prefix_cache=False), runner.cache)))


def engine_with(rule: str, bridge: str, sampling: str = "request") -> Engine:
    target, draft = scripted(OURS, TARGET), scripted(THEIRS, DRAFT)
    speculation = SpeculationOptions(
        proposer="draft_model",
        draft_length=3,
        rule=rule,
        draft_sampling=sampling,
        proposer_options={"bridge": bridge, "min_confidence": 0.0},
    )
    return assemble(
        target.backend,
        OURS,
        proposers=build_proposers(Ingredients(speculation, target, draft)),
        speculation=speculation,
        options=EngineOptions(max_batch=32, step_tokens=512),
    )


def p_values(engine: Engine) -> list[float]:
    """One for each position of the output, over many requests with different seeds."""
    for seed in range(REQUESTS):
        params = SamplingParams(seed=seed, max_tokens=LENGTH, ignore_eos=True, temperature=1.0)
        engine.add(Request(OURS.encode("same")[: 1 + seed % 4], params))
    answers = drain(engine).values()
    law = [(OURS.encode(text)[0], REQUESTS * share) for text, share in TARGET.items()]
    values = []
    for position in range(LENGTH):
        counts = Counter(answer.tokens[position] for answer in answers)
        assert set(counts) <= {token for token, _ in law}
        values.append(chisquare([counts[token] for token, _ in law], [share for _, share in law]).pvalue)
    return values


@pytest.mark.parametrize("sampling", ["request", "greedy"])
@pytest.mark.parametrize("bridge", ["vocabulary", "text", "auto"])
@pytest.mark.parametrize("rule", ["match", "rejection", "block"])
def test_every_exact_rule_follows_the_target(rule: str, bridge: str, sampling: str) -> None:
    """CASES kinds 05, 19 and 25."""
    engine = engine_with(rule, bridge, sampling)
    reports: list[StepReport] = []
    engine.observers.append(reports.append)
    assert min(p_values(engine)) > 0.001
    assert sum(report.drafted for report in reports) > 0


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_draft_that_was_not_drawn_from_its_probabilities_is_found_out(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: the draft takes the best shared token, but the rule is told that it sampled."""
    monkeypatch.setattr(tree, "pick", lambda row, scores, position: int(scores.argmax()))
    assert min(p_values(engine_with(rule, "vocabulary"))) < 0.001


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_probabilities_in_the_order_of_the_wrong_tokenizer_are_found_out(
    rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted fault: the ids of probabilities are one off, as those of another vocabulary would be."""
    untouched = TokenGrowth.take

    def take(growth: TokenGrowth, logits) -> None:
        untouched(growth, logits)
        probs = growth.builder._probs
        probs[-1] = probs[-1].roll(1).clamp(min=1e-6)

    monkeypatch.setattr(TokenGrowth, "take", take)
    assert min(p_values(engine_with(rule, "vocabulary"))) < 0.001
