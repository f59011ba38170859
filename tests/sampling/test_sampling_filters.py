from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gamaneh.core import Use
from gamaneh.errors import BadLogits
from gamaneh.options import SamplingParams
from gamaneh.sampling import blocks
from gamaneh.sampling.filters import apply_filters
from gamaneh.sampling.pipeline import RequestSampler


def reference_support(row: Tensor, params: SamplingParams) -> list[int]:
    """The surviving ids by sorting everything, one filter after another."""
    ids = sorted(range(row.shape[0]), key=lambda token: (-float(row[token]), token))
    weights = {token: math.exp((float(row[token]) - float(row.max())) / params.temperature) for token in ids}
    ids = ids[: params.top_k or None]
    total, before, kept = sum(weights[token] for token in ids), 0.0, []
    for token in ids:
        if params.top_p == 1.0 or before / total < params.top_p:
            kept.append(token)
        before += weights[token]
    return sorted(token for token in kept if weights[token] >= params.min_p * weights[kept[0]])


def support(scores: Tensor) -> list[int]:
    return (scores > -math.inf).nonzero().squeeze(1).tolist()


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.9]),
    top_k=st.sampled_from([0, 1, 2, 5, 40, 1000]),
    top_p=st.sampled_from([0.013, 0.377, 0.813, 0.953, 0.9989, 1.0]),
    min_p=st.sampled_from([0.0, 0.0137, 0.213, 0.97]),
)


@settings(max_examples=120, deadline=None)
@given(params=PARAMS, vocab=st.sampled_from([3, 63, 64, 65, 700]), seed=st.integers(0, 999), tied=st.booleans())
def test_survivors_equal_those_of_a_full_sort(params: SamplingParams, vocab: int, seed: int, tied: bool) -> None:
    row = torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * 3
    row = row.round() if tied else row
    assert support(apply_filters(row, params)) == reference_support(row, params)


@pytest.mark.parametrize("top_p", [0.5, 0.95, 0.9999])
def test_a_nucleus_of_any_size_equals_that_of_a_full_sort(top_p: float) -> None:
    row = torch.randn(9000, generator=torch.Generator().manual_seed(0))
    params = SamplingParams(temperature=1.0, top_p=top_p)
    assert support(apply_filters(row, params)) == reference_support(row, params)


def test_survivors_keep_their_relative_scores() -> None:
    row = torch.tensor([1.0, 4.0, 2.0, 3.0])
    scores = apply_filters(row, SamplingParams(temperature=0.5, top_k=2))
    assert float(scores[1] - scores[3]) == pytest.approx(2.0)


def test_equal_scores_at_the_border_of_top_k_go_to_the_lowest_ids() -> None:
    row = torch.tensor([0.0, 1.0, 1.0, 2.0, 1.0])
    assert support(apply_filters(row, SamplingParams(temperature=1.0, top_k=3))) == [1, 2, 3]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, top_p=1e-9),
        SamplingParams(temperature=1.0, top_k=1),
        SamplingParams(temperature=1.0, min_p=1.0),
        SamplingParams(temperature=1e-30, top_k=2, top_p=0.5, min_p=1.0),
    ],
)
def test_the_most_likely_token_always_survives(params: SamplingParams) -> None:
    assert support(apply_filters(torch.tensor([1.0, 3.0, 2.0]), params)) == [1]


def test_nothing_asked_returns_the_row_itself() -> None:
    row = torch.randn(8)
    assert apply_filters(row, SamplingParams(temperature=1.0)) is row


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_with_nan_or_infinity_is_refused_by_filters(bad: float) -> None:
    with pytest.raises(BadLogits):
        apply_filters(torch.tensor([0.0, bad]), SamplingParams(temperature=1.0, top_p=0.9))


@settings(max_examples=60, deadline=None)
@given(vocab=st.integers(1, 300), count=st.integers(0, 300), seed=st.integers(0, 999))
def test_largest_equals_a_stable_sort(vocab: int, count: int, seed: int) -> None:
    row = torch.randint(0, 9, (vocab,), generator=torch.Generator().manual_seed(seed)).float()
    values, order = row.sort(descending=True, stable=True)
    got_values, got_ids = blocks.largest(row, count)
    assert got_values.tolist() == values[:count].tolist()
    assert got_ids.tolist() == order[:count].tolist()


@settings(max_examples=60, deadline=None)
@given(vocab=st.integers(1, 300), seed=st.integers(0, 999))
def test_argmax_is_the_lowest_id_of_the_highest_value(vocab: int, seed: int) -> None:
    row = torch.randint(0, 4, (vocab,), generator=torch.Generator().manual_seed(seed)).float()
    assert blocks.argmax(row) == row.tolist().index(max(row.tolist()))


@pytest.mark.parametrize("temperature", [1e-20, 3.9e-64, 5e-324])
def test_a_temperature_that_is_zero_in_float32_leaves_the_best_token(temperature: float) -> None:
    scores = apply_filters(torch.tensor([1.0, 3.0, 2.0]), SamplingParams(temperature=temperature))
    assert scores.softmax(0).tolist() == [0.0, 1.0, 0.0]


class TestEqualScores:
    """Greedy takes the lowest id; whatever samples draws among the highest, however cold it is."""

    LOGITS = torch.tensor([0.0, 5.0, 1.0, 5.0])

    def token(self, seed: int, **more) -> int:
        params = SamplingParams(seed=seed, **more)
        sampler = RequestSampler(params, vocab_size=4, prompt=[0], tokens=[0], eos_ids=(), seed=seed)
        return sampler.pick(sampler.scores(self.LOGITS, ()), 1, Use.TARGET)

    def test_greedy_takes_the_lowest_id(self) -> None:
        assert self.token(1, temperature=0.0) == 1

    @pytest.mark.parametrize("more", [{"temperature": 1e-6}, {"temperature": 1.0, "min_p": 1.0}], ids=["cold", "min_p"])
    def test_sampling_draws_among_them(self, more) -> None:
        assert {self.token(seed, **more) for seed in range(40)} == {1, 3}
