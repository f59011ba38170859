"""The best tokens of a row with their noise: the first is the one drawn, the others are drawn without it."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import pytest
import torch
from scipy.stats import chisquare

from gamaneh.core import Use
from gamaneh.errors import BadLogits
from gamaneh.options import SamplingParams
from gamaneh.sampling import noise
from gamaneh.sampling.pipeline import RequestSampler

SIZES = [5, 300, 2048, 2049, 5000, 20_011]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 3, 17])
def test_the_best_are_those_of_all_sums(size: int, count: int) -> None:
    scores = torch.randn(size, generator=torch.Generator().manual_seed(size)) * 3
    for position in range(10):
        sums = scores.double() + noise.gumbel(7, position, Use.TARGET, torch.arange(size))
        order = sums.argsort(descending=True)[:count].tolist()
        found = noise.draw_several(scores, 7, position, Use.TARGET, count)
        assert [token for _, token in found] == order
        assert [total for total, _ in found] == sums[order].tolist()
        assert found[0][1] == noise.draw(scores, 7, position, Use.TARGET)


@pytest.mark.parametrize("size", SIZES)
def test_impossible_tokens_are_left_out(size: int) -> None:
    scores = torch.full((size,), -torch.inf)
    scores[[1, 4]] = 0.0
    found = noise.draw_several(scores, 3, 0, Use.TARGET, 4)
    assert sorted(token for _, token in found) == [1, 4]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("size", [5, 5000])
def test_a_row_without_a_highest_number_is_refused(bad: float, size: int) -> None:
    with pytest.raises(BadLogits):
        noise.draw_several(torch.full((size,), bad), 3, 0, Use.TARGET, 2)


def test_pairs_follow_the_law_of_drawing_without_replacement() -> None:
    probs = [0.5, 0.3, 0.15, 0.05]
    scores = torch.tensor(probs).log()
    draws = 4000
    pairs = Counter(
        tuple(token for _, token in noise.draw_several(scores, seed, 1, Use.DRAFT, 2)) for seed in range(draws)
    )
    law = {(a, b): probs[a] * probs[b] / (1 - probs[a]) for a, b in permutations(range(4), 2)}
    assert chisquare([pairs[pair] for pair in law], [draws * share for share in law.values()]).pvalue > 0.001


def sampler(**params: float) -> RequestSampler:
    sampling = SamplingParams(**params)
    return RequestSampler(sampling, vocab_size=6, prompt=[0], tokens=[0], eos_ids=(), seed=5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_ranks_as_it_picks(temperature: float) -> None:
    own = sampler(temperature=temperature)
    scores = own.scores(torch.tensor([0.1, 2.0, 1.0, -torch.inf, 2.0, 0.0]), ())
    for use in Use:
        for position in range(20):
            ranked = own.ranked(scores, position, use, 6)
            assert ranked[0][1] == own.pick(scores, position, use)
            assert len(ranked) == 5
            assert ranked == sorted(ranked, key=lambda found: (-found[0], found[1]))


def test_a_greedy_request_ranks_equal_scores_by_id() -> None:
    own = sampler(temperature=0.0)
    assert own.greedy
    ranked = own.ranked(torch.tensor([1.0, 2.0, 2.0, 0.0, 2.0, -1.0]), 0, Use.TARGET, 4)
    assert ranked == [(2.0, 1), (2.0, 2), (2.0, 4), (1.0, 0)]
