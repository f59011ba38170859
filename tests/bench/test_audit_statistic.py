"""The audit's two tests on synthetic data with a known answer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import chi2, kstest

from gamaneh.bench.audit.statistic import (
    chi_square_tail,
    mean_p_value,
    permutation_p_value,
    rank,
    uniform_p_value,
)

PROBS = torch.tensor([0.1, 0.4, 0.2, 0.2, 0.1, 0.0], dtype=torch.float64)


def draws(probs, count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).choice(len(probs), size=count, p=np.asarray(probs) / np.asarray(probs).sum())


def ranks_of(tokens, seed: int = 1) -> list[float]:
    uniforms = np.random.default_rng(seed).random(len(tokens))
    return [rank(PROBS, PROBS, int(token), float(uniform)) for token, uniform in zip(tokens, uniforms, strict=True)]


@pytest.mark.parametrize(("value", "freedom"), [(0.5, 1), (30.1, 19), (80.0, 19), (3.0, 4)])
def test_the_tail_of_chi_square_is_scipys(value: float, freedom: int) -> None:
    assert chi_square_tail(value, freedom) == pytest.approx(chi2.sf(value, freedom))


def test_ranks_of_the_targets_own_draws_are_uniform() -> None:
    assert kstest(ranks_of(draws(PROBS, 4000)), "uniform").pvalue > 0.01


def test_likelier_tokens_come_first_and_equal_ones_share_their_level() -> None:
    assert rank(PROBS, PROBS, 1, 0.5) == pytest.approx(0.2)
    assert rank(PROBS, PROBS, 2, 0.5) == rank(PROBS, PROBS, 3, 0.5) == pytest.approx(0.6)
    assert rank(PROBS, PROBS, 5, 0.5) == pytest.approx(1.0)


ORDER = torch.tensor([0.0, 0.0, 3.0, 0.0, 1.0, 0.0], dtype=torch.float64)


def test_ranks_are_uniform_in_any_other_order_too() -> None:
    tokens, uniforms = draws(PROBS, 4000), np.random.default_rng(5).random(4000)
    pairs = zip(tokens, uniforms, strict=True)
    ranks = [rank(PROBS, ORDER, int(token), float(uniform)) for token, uniform in pairs]
    assert kstest(ranks, "uniform").pvalue > 0.01
    assert mean_p_value(ranks) > 0.01


def test_the_mean_of_uniform_ranks_is_judged_by_the_normal_law() -> None:
    p_values = [mean_p_value(np.random.default_rng(seed).random(100).tolist()) for seed in range(300)]
    assert kstest(p_values, "uniform").pvalue > 0.01


@pytest.mark.parametrize("shift", [-0.1, 0.1])
def test_a_shifted_mean_is_found_in_either_direction(shift: float) -> None:
    ranks = np.clip(np.random.default_rng(0).random(1500) + shift, 0.0, 1.0)
    assert mean_p_value(ranks.tolist()) < 1e-6


def test_p_values_of_honest_draws_are_uniform_themselves() -> None:
    p_values = [uniform_p_value(ranks_of(draws(PROBS, 300, seed), seed + 1000)) for seed in range(200)]
    assert kstest(p_values, "uniform").pvalue > 0.01


@pytest.mark.parametrize("wrong", [[0.1, 0.5, 0.15, 0.15, 0.1, 0.0], [0.15, 0.3, 0.2, 0.2, 0.15, 0.0]])
def test_draws_from_another_law_are_found(wrong: list[float]) -> None:
    assert uniform_p_value(ranks_of(draws(wrong, 3000))) < 1e-6


@pytest.mark.parametrize("count", [0, 1, 9])
def test_too_few_ranks_say_nothing(count: int) -> None:
    assert uniform_p_value([0.001] * count) == mean_p_value([0.001] * count) == 1.0


def outputs(probs, seed: int, prompts: int = 3) -> list[np.ndarray]:
    """Outputs whose positions depend on one another: each token is drawn, then repeated."""
    return [np.repeat(draws(probs, 60, seed * 100 + prompt)[:, None], 3, axis=1) for prompt in range(prompts)]


def test_two_samples_of_one_law_seldom_differ() -> None:
    p_values = [permutation_p_value(outputs(PROBS, seed), outputs(PROBS, seed + 50), seed) for seed in range(50)]
    assert kstest(p_values, "uniform").pvalue > 0.01


def test_two_samples_of_different_laws_do() -> None:
    p_value = permutation_p_value(outputs(PROBS, 1), outputs([0.2, 0.1, 0.2, 0.2, 0.3, 0.0], 2), 0)
    assert p_value == pytest.approx(1e-4)
