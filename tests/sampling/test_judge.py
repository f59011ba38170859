"""All drafts of a step are judged at once as each would be by itself, row by row."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gamaneh.core import ROOT, Draft, Verdict
from gamaneh.errors import BadLogits
from gamaneh.options import SamplingParams, SpeculationOptions
from gamaneh.sampling.pipeline import RequestSampler
from gamaneh.sampling.rows import DraftRows, Trial, judge
from gamaneh.sampling.rules import RULES

VOCAB = 70
PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.6, 1.0]),
    top_k=st.sampled_from([0, 0, 3]),
    top_p=st.sampled_from([1.0, 1.0, 0.9]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.5]),
)
SHAPES = [(), (ROOT,), (ROOT, 0, 1, 2), (ROOT, ROOT, 0, 0, 1, 2)]
"""Parents: nothing, chains and a tree."""


def sampler_of(params: SamplingParams, seed: int) -> RequestSampler:
    return RequestSampler(params, vocab_size=VOCAB, prompt=[1], tokens=[1, 2], eos_ids=(0,), seed=seed)


def trial_of(
    rule: str, params: SamplingParams, parents: tuple[int, ...], seed: int, tokens: tuple[int, ...] | None = None
) -> Trial:
    """Candidates that are likely, so that some are accepted."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(parents) + 1, VOCAB, generator=generator) * 4
    likely = tuple(int(logits[1 + parent].topk(2).indices[node % 2]) for node, parent in enumerate(parents))
    probs = torch.rand(len(parents), VOCAB, generator=generator).softmax(1) if rule in ("rejection", "block") else None
    draft = Draft(likely if tokens is None else tokens, parents, probs)
    return Trial(RULES[rule](SpeculationOptions()), draft, logits, sampler_of(params, seed), 2)


def one_by_one(trial: Trial) -> Verdict:
    rows = DraftRows(trial.logits, trial.draft, trial.sampler, trial.position, VOCAB)
    return trial.rule.judge(trial.draft, rows)


@settings(max_examples=60, deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.sampled_from(sorted(RULES)), PARAMS, st.sampled_from(SHAPES), st.integers(0, 99)),
        min_size=1,
        max_size=6,
    ),
    by_level=st.booleans(),
)
def test_every_mixture_of_rules(
    requests: list[tuple[str, SamplingParams, tuple[int, ...], int]], by_level: bool
) -> None:
    trials = [trial_of(*request) for request in requests]

    assert judge(trials, VOCAB, by_level=by_level) == [one_by_one(trial) for trial in trials]


def test_no_draft_at_all() -> None:
    assert judge([], VOCAB) == []


def accepted_to_the_end(rule: str, temperature: float = 0.0) -> Trial:
    """A chain of three that the target accepts."""
    trial = trial_of(rule, SamplingParams(temperature=temperature), SHAPES[2][:3], 3)
    plain = tuple(int(row.argmax()) for row in trial.logits)
    return trial_of(rule, SamplingParams(temperature=temperature), SHAPES[2][:3], 3, plain[:3])


@pytest.mark.parametrize("rule", sorted(RULES))
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_the_tokens_before_a_bad_row_are_those_of_plain_decoding(rule: str, bad: float) -> None:
    trial = accepted_to_the_end(rule)
    whole = one_by_one(trial)
    trial.logits[2] = bad

    assert judge([trial], VOCAB) == [Verdict(whole.path[:1], whole.tokens[:2], bonus=True)]


def test_the_tokens_before_a_bad_row_of_a_tree() -> None:
    trial = trial_of("match", SamplingParams(), SHAPES[3], 3, tokens=(1, 2, 3, 4, 5, 6))
    for node, token in ((ROOT, 2), (1, 5), (4, 9)):
        trial.logits[1 + node] = 0.0
        trial.logits[1 + node, token] = 9.0

    assert judge([trial], VOCAB) == [Verdict((1, 4), (2, 5, 9), bonus=True)]
    trial.logits[1 + 4] = math.nan
    assert judge([trial], VOCAB) == [Verdict((1,), (2, 5), bonus=True)]


def test_a_bad_first_row_ends_its_request_alone() -> None:
    good, bad = accepted_to_the_end("match"), accepted_to_the_end("match", 1.0)
    bad.logits[0, 4] = math.nan
    found = judge([good, bad, good], VOCAB)

    assert found[0] == found[2] == one_by_one(good)
    assert isinstance(found[1], BadLogits)


@pytest.mark.parametrize("by_level", [True, False])
def test_a_bad_row_that_is_not_reached_changes_nothing(by_level: bool) -> None:
    trial = trial_of("match", SamplingParams(), SHAPES[2], 3, tokens=(69, 69, 69, 69))
    expected = one_by_one(trial)
    trial.logits[2:] = math.nan

    assert judge([trial], VOCAB, by_level=by_level) == [expected]
