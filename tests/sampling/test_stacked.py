"""Many rows at once come to what each comes to by itself."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gamaneh.core import Use
from gamaneh.errors import BadLogits
from gamaneh.options import SamplingParams
from gamaneh.sampling.pipeline import RequestSampler
from gamaneh.sampling.stacked import LogitRow, picks, probabilities, stacked

MIXED = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.0, 0.3, 1.0, 1.0, 1.9, 1e-20]),
    top_k=st.sampled_from([0, 0, 1, 5, 40]),
    top_p=st.sampled_from([1.0, 1.0, 0.013, 0.813, 0.9989]),
    min_p=st.sampled_from([0.0, 0.0, 0.0137, 0.97]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.7]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3]),
    logit_bias=st.sampled_from([{}, {}, {1: 3.0, 2: -100.0}]),
    bad_words=st.sampled_from([(), (), ((0,), (3, 1))]),
)


class OddTokens:
    """A mask that allows only tokens that are no longer in doubt."""

    def mask(self, path: Sequence[int]) -> Tensor:
        return torch.arange(5000) % 2 == len(path) % 2

    def forced(self, length: int) -> tuple[bytes, ...]:
        return ()


def sampler_of(params: SamplingParams, vocab: int, seed: int, masked: bool = False) -> RequestSampler:
    mask = OddTokens() if masked else None
    return RequestSampler(
        params, vocab_size=vocab, prompt=[1, 2], tokens=[1, 2, 3, 1], eos_ids=(0,), seed=seed, mask=mask
    )


def row_by_row(logits: Tensor, row: LogitRow) -> tuple[int | None, Tensor | None]:
    try:
        scores = row.sampler.scores(logits[row.at], row.path)
        return row.sampler.pick(scores, row.position, Use.TARGET), row.sampler.probs(scores)
    except BadLogits:
        return None, None


def same(left: Tensor | None, right: Tensor | None) -> bool:
    return left is right if left is None or right is None else torch.equal(left, right)


@settings(max_examples=80, deadline=None)
@given(
    requests=st.lists(st.tuples(MIXED, st.booleans(), st.integers(1, 4)), min_size=1, max_size=6),
    vocab=st.sampled_from([4, 63, 64, 130, 2048, 2049, 5000]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 999),
    spread=st.sampled_from([0.0, 0.3, 3.0, 12.0]),
    tied=st.booleans(),
    bad=st.sampled_from([None, math.nan, math.inf, -math.inf]),
)
def test_every_mixture_of_parameters(
    requests: list[tuple[SamplingParams, bool, int]],
    vocab: int,
    dtype: torch.dtype,
    seed: int,
    spread: float,
    tied: bool,
    bad: float | None,
) -> None:
    count = sum(rows for *_, rows in requests)
    logits = torch.randn(count, vocab, generator=torch.Generator().manual_seed(seed)) * spread
    logits = (logits.round() if tied else logits).to(dtype)
    if bad is not None:
        logits[count // 2] = bad
    rows: list[LogitRow] = []
    for at, (params, masked, own) in enumerate(requests):
        sampler = sampler_of(params, vocab, seed + at, masked)
        rows += [LogitRow(len(rows) + node, sampler, (3, 1, 2)[:node], 4 + node) for node in range(own)]

    expected = [row_by_row(logits, row) for row in rows]

    assert picks(logits, rows) == [token for token, _ in expected]
    for found, (_, probs) in zip(probabilities(logits, rows), expected, strict=True):
        assert same(found, probs)


@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0])
@pytest.mark.parametrize(
    "options", [{}, {"temperature": 1.0}, {"temperature": 0.7}, {"temperature": 0.9, "top_p": 0.95, "top_k": 50}]
)
def test_a_real_vocabulary(options: dict[str, float], spread: float) -> None:
    logits = torch.randn(20, 49_153, generator=torch.Generator().manual_seed(3)) * spread
    sampler = sampler_of(SamplingParams(**options), 49_153, 7)
    rows = [LogitRow(at, sampler, (), 4 + at) for at in range(20)]

    assert picks(logits, rows) == [row_by_row(logits, row)[0] for row in rows]


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}, {"temperature": 1.2, "top_p": 0.9}])
def test_a_row_comes_to_the_same_whatever_is_beside_it(options: dict[str, float]) -> None:
    logits = torch.randn(9, 4000, generator=torch.Generator().manual_seed(5)) * 3
    sampler = sampler_of(SamplingParams(**options), 4000, 7)
    rows = [LogitRow(at, sampler, (), 4 + at) for at in range(9)]
    together, probs = picks(logits, rows), probabilities(logits, rows)

    for row in rows:
        assert picks(logits, [row]) == [together[row.at]]
        assert same(probabilities(logits, [row])[0], probs[row.at])


def test_the_logits_stay_as_they_are() -> None:
    logits = torch.randn(3, 300)
    before = logits.clone()
    sampler = sampler_of(SamplingParams(temperature=0.8, top_k=4, frequency_penalty=1.0), 300, 1)
    rows = [LogitRow(at, sampler, (), at) for at in range(3)]
    picks(logits, rows)
    probabilities(logits, rows)

    assert torch.equal(logits, before)


def test_neighbours_in_memory_are_not_copied() -> None:
    whole = torch.randn(7, 12)[:, :10]
    together = stacked(whole.split([2, 1, 4]))

    assert together.data_ptr() == whole.data_ptr()
    assert torch.equal(together, whole)


def test_what_lies_apart_is_put_together() -> None:
    parts = [torch.randn(2, 10), torch.randn(3, 10)]

    assert torch.equal(stacked(parts), torch.cat(parts))
    assert torch.equal(stacked([parts[1][2:], parts[1][:1]]), parts[1][[2, 0]])
