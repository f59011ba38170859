from __future__ import annotations

import math

import pytest
import torch
import whole_number_noise
from scipy import stats
from torch import Tensor

from gamaneh.core import Use
from gamaneh.errors import BadLogits
from gamaneh.sampling import noise

P_LIMIT = 0.001


def evaluated_in_full(scores: Tensor, seed: int, position: int) -> int:
    everything = torch.arange(scores.shape[0])
    return int((scores.double() + noise.gumbel(seed, position, Use.TARGET, everything)).argmax())


def test_gumbel_equals_the_reference_in_whole_numbers() -> None:
    tokens = torch.tensor([0, 1, 2, 3, 4, 1023, 151_935, 2**31])
    expected = whole_number_noise.gumbel(-5, 77, Use.DRAFT, tokens)
    torch.testing.assert_close(noise.gumbel(-5, 77, Use.DRAFT, tokens), expected, rtol=1e-12, atol=0)


def test_gumbel_follows_its_law() -> None:
    sample = noise.gumbel(1, 2, Use.TARGET, torch.arange(200_000)).numpy()
    assert stats.kstest(sample, "gumbel_r").pvalue > P_LIMIT


def test_gumbel_follows_its_law_across_positions() -> None:
    sample = [float(noise.gumbel(1, position, Use.TARGET, torch.tensor(5))) for position in range(3000)]
    assert stats.kstest(sample, "gumbel_r").pvalue > P_LIMIT


def test_large_noise_is_as_frequent_as_it_should_be() -> None:
    sample = torch.cat([noise.gumbel(seed, 0, Use.TARGET, torch.arange(500_000)) for seed in range(4)])
    expected = 2_000_000 * -math.expm1(-math.exp(-10.0))
    assert abs(int((sample > 10.0).sum()) - expected) < 4 * math.sqrt(expected)


@pytest.mark.parametrize("rarity", [0, (1 << 63) - 1])
def test_extreme_noise_is_finite(rarity: int) -> None:
    assert torch.isfinite(noise._to_gumbel(torch.tensor([rarity]))).all()


def test_uniform_is_uniform_over_positions_and_seeds() -> None:
    by_position = [noise.uniform(3, position, Use.ACCEPT) for position in range(5000)]
    by_seed = [noise.uniform(seed, 3, Use.ACCEPT) for seed in range(5000)]
    assert stats.kstest(by_position, "uniform").pvalue > P_LIMIT
    assert stats.kstest(by_seed, "uniform").pvalue > P_LIMIT


def independent(left: list[float], right: list[float]) -> bool:
    """Chi-square on an 8 x 8 table of two samples from (0, 1)."""
    table = torch.zeros(8, 8)
    for a, b in zip(left, right, strict=True):
        table[int(a * 8), int(b * 8)] += 1
    return bool(stats.chi2_contingency(table.numpy()).pvalue > P_LIMIT)


def test_uses_positions_and_seeds_are_independent() -> None:
    base = [noise.uniform(0, position, Use.ACCEPT) for position in range(8000)]
    assert independent(base, [noise.uniform(0, position, Use.RESIDUAL) for position in range(8000)])
    assert independent(base, [noise.uniform(0, position + 1, Use.ACCEPT) for position in range(8000)])
    assert independent(base, [noise.uniform(1, position, Use.ACCEPT) for position in range(8000)])
    assert independent(base, [noise.uniform(noise.fold(0, position), position, Use.ACCEPT) for position in range(8000)])


def quantiles(use: Use, tokens: Tensor, position: int = 0) -> list[float]:
    return torch.exp(-torch.exp(-noise.gumbel(9, position, use, tokens))).clamp(max=0.999999).tolist()


def test_token_noise_is_independent_of_neighbours_uses_and_positions() -> None:
    tokens = torch.arange(20_000)
    base = quantiles(Use.TARGET, tokens)
    assert independent(base, quantiles(Use.TARGET, tokens + 1))
    assert independent(base, quantiles(Use.TARGET, tokens + 4))
    assert independent(base, quantiles(Use.DRAFT, tokens))
    assert independent(base, quantiles(Use.TARGET, tokens, position=1))


def test_seeds_that_differ_only_in_sign_bits_differ() -> None:
    assert noise.uniform(5, 0, Use.TARGET) != noise.uniform(5 - 2**63, 0, Use.TARGET)


def test_a_token_has_the_same_noise_in_every_vocabulary() -> None:
    small = noise.gumbel(4, 8, Use.TARGET, torch.arange(151_936))
    assert torch.equal(small, noise.gumbel(4, 8, Use.TARGET, torch.arange(152_064))[:151_936])


def test_padding_does_not_change_a_draw() -> None:
    scores = torch.randn(5000, generator=torch.Generator().manual_seed(0))
    padded = torch.cat((scores, torch.full((131,), -math.inf)))
    assert [noise.draw(scores, 1, i, Use.TARGET) for i in range(50)] == [
        noise.draw(padded, 1, i, Use.TARGET) for i in range(50)
    ]


@pytest.mark.parametrize("vocab", [2, 64, 2048, 2049, 4097, 20_000])
@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0, 12.0])
def test_a_draw_equals_the_full_evaluation(vocab: int, spread: float) -> None:
    scores = torch.randn(vocab, generator=torch.Generator().manual_seed(vocab)) * spread
    for position in range(8):
        assert noise.draw(scores, 3, position, Use.TARGET) == evaluated_in_full(scores, 3, position)


def test_a_draw_from_a_real_vocabulary_equals_the_full_evaluation() -> None:
    scores = torch.randn(151_936, generator=torch.Generator().manual_seed(0)) * 3
    for position in range(5):
        assert noise.draw(scores, 3, position, Use.TARGET) == evaluated_in_full(scores, 3, position)


@pytest.mark.parametrize("support", [[7], [0, 2999], [2998, 2999], list(range(0, 3000, 7))])
def test_a_filtered_draw_equals_the_full_evaluation(support: list[int]) -> None:
    scores = torch.full((3000,), -math.inf)
    scores[support] = torch.randn(len(support), generator=torch.Generator().manual_seed(1))
    for position in range(20):
        token = noise.draw(scores, 3, position, Use.TARGET)
        assert token in support
        assert token == evaluated_in_full(scores, 3, position)


def test_equal_sums_go_to_the_lowest_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "_to_gumbel", lambda rarity: torch.zeros(rarity.shape, dtype=torch.float64))
    for vocab in (5, 5000):
        scores = torch.zeros(vocab)
        scores[0] = -1.0
        assert noise.draw(scores, 0, 0, Use.TARGET) == 1


def test_draws_follow_the_scores() -> None:
    probs = torch.tensor([0.5, 0.25, 0.15, 0.1])
    tokens = [noise.draw(probs.log(), 6, position, Use.DRAFT) for position in range(4000)]
    counts = torch.bincount(torch.tensor(tokens), minlength=4)
    assert stats.chisquare(counts.numpy(), (probs * 4000).numpy(), sum_check=False).pvalue > P_LIMIT


@pytest.mark.parametrize("vocab", [4, 5000])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_with_nan_or_infinity_is_refused(vocab: int, bad: float) -> None:
    scores = torch.zeros(vocab)
    scores[-1] = bad
    with pytest.raises(BadLogits, match="must be finite"):
        noise.draw(scores, 0, 0, Use.TARGET)


@pytest.mark.parametrize("vocab", [4, 5000])
def test_a_row_that_allows_nothing_is_refused(vocab: int) -> None:
    with pytest.raises(BadLogits, match="must be finite"):
        noise.draw(torch.full((vocab,), -math.inf), 0, 0, Use.TARGET)
