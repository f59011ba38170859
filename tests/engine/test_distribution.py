"""Sampled output through the whole engine follows the target's distribution; a planted fault is found."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from conftest import drain
from scipy.stats import chisquare

from gamaneh.backends.paged import PagedBackend
from gamaneh.core import Request
from gamaneh.engine.assembly import assemble
from gamaneh.engine.engine import Engine
from gamaneh.kv import BlockPool, KVManager
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.proposers import tree
from gamaneh.proposers.draft_model import DraftModelProposer
from gamaneh.sampling.rules import Block, Rejection
from gamaneh.testing import ByteTokenizer, ScriptedRunner, constant

TARGET, DRAFT = [0.4, 0.3, 0.2, 0.1], [0.7, 0.1, 0.1, 0.1]
REQUESTS, LENGTH = 600, 4


def engine_with(rule: str, sampling: str, k: int) -> Engine:
    target, draft = (ScriptedRunner(constant(probs), 4, num_blocks=400, block_size=4) for probs in (TARGET, DRAFT))
    kv, draft_kv = (KVManager(BlockPool(400, 4, prefix_cache=False), runner.cache) for runner in (target, draft))
    proposer = DraftModelProposer(PagedBackend(draft, draft_kv), vocab_size=4)
    speculation = SpeculationOptions(proposer="draft_model", draft_length=k, rule=rule, draft_sampling=sampling)
    options = EngineOptions(max_batch=32, step_tokens=512)
    tokenizer = ByteTokenizer()
    return assemble(
        PagedBackend(target, kv),
        tokenizer,
        proposers={proposer.name: proposer},
        speculation=speculation,
        options=options,
    )


def p_values(engine: Engine, expected: list[float], **params) -> list[float]:
    """One for each position of the output, over many requests with different seeds."""
    for seed in range(REQUESTS):
        engine.add(Request([seed % 4], SamplingParams(seed=seed, max_tokens=LENGTH, ignore_eos=True, **params)))
    answers = drain(engine).values()
    support = [token for token, prob in enumerate(expected) if prob > 0]
    values = []
    for position in range(LENGTH):
        counts = Counter(answer.tokens[position] for answer in answers)
        assert set(counts) <= set(support)
        observed = [counts[token] for token in support]
        values.append(chisquare(observed, [REQUESTS * expected[token] for token in support]).pvalue)
    return values


CELLS = {
    "plain": ({"temperature": 1.0}, [0.4, 0.3, 0.2, 0.1]),
    "temperature": ({"temperature": 0.7}, torch.tensor(TARGET).double().log().div(0.7).softmax(0).tolist()),
    "top_p": ({"temperature": 1.0, "top_p": 0.8}, [4 / 9, 3 / 9, 2 / 9, 0.0]),
    "top_k": ({"temperature": 1.0, "top_k": 2}, [4 / 7, 3 / 7, 0.0, 0.0]),
    "min_p": ({"temperature": 1.0, "min_p": 0.3}, [4 / 9, 3 / 9, 2 / 9, 0.0]),
}


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("sampling", ["request", "greedy"])
@pytest.mark.parametrize("rule", ["match", "rejection", "block"])
def test_every_exact_rule_follows_the_target(rule: str, sampling: str, cell: str) -> None:
    """CASES kinds 05 and 19."""
    params, expected = CELLS[cell]
    assert min(p_values(engine_with(rule, sampling, 3), expected, **params)) > 0.001


@pytest.mark.parametrize("rule", [Rejection, Block])
def test_soft_probabilities_for_a_greedy_draft_are_found_out(rule, monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: the draft takes its best token, but the rule is told that it sampled."""
    engine = engine_with(rule.name, "request", 3)
    monkeypatch.setattr(tree, "pick", lambda row, scores, position: int(scores.argmax()))
    assert min(p_values(engine, TARGET, temperature=1.0)) < 0.001


def test_the_approximate_rule_is_marked_and_does_depart() -> None:
    engine = engine_with("typical", "request", 3)
    rules = []
    engine.observers.append(lambda report: rules.append(report.rule))
    assert min(p_values(engine, TARGET, temperature=1.0)) < 0.001
    assert set(rules) == {"typical"}
