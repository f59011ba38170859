"""The tests behind the check of sampled output. They hold for any target, any vocabulary and any sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MOST_BINS = 20
LEAST_EXPECTED = 5
LEAST_FOR_MEAN = 30
PERMUTATIONS = 9999
_CHUNK = 500

Labels = NDArray[np.float32]


def rank(probs: Tensor, order: Tensor, token: int, uniform: float) -> float:
    """Where `token` stands in `[vocab]` probabilities: in (0, 1), and uniform if it was drawn from them.

    The randomised probability integral transform: the probability of all tokens before it, and a
    random part `uniform` of that of the tokens on its own level. Source: Brockwell 2007, "Universal
    residuals: a multivariate transformation", for the randomised part.

    Args:
        order: `[vocab]`, larger values stand before smaller ones; any order will do that does not
            depend on the draw.
    """
    own = order[token]
    above, level = float(probs[order > own].sum()), float(probs[order == own].sum())
    return min(above + uniform * level, 1.0)


def uniform_p_value(ranks: Sequence[float]) -> float:
    """Chance of ranks at least this uneven if they are uniform: Pearson's chi-square over equal bins.

    1 where there are too few of them for two bins.
    """
    bins = min(MOST_BINS, len(ranks) // LEAST_EXPECTED)
    if bins < 2:
        return 1.0
    counts, _ = np.histogram(ranks, bins=bins, range=(0.0, 1.0))
    expected = len(ranks) / bins
    return chi_square_tail(float(((counts - expected) ** 2 / expected).sum()), bins - 1)


def mean_p_value(ranks: Sequence[float]) -> float:
    """Chance of a mean at least this far from 1/2 if the ranks are uniform, by the central limit theorem.

    Sharper than the test over bins where all that can be wrong goes one way. 1 where there are too few ranks.
    """
    if len(ranks) < LEAST_FOR_MEAN:
        return 1.0
    deviation = (sum(ranks) / len(ranks) - 0.5) * math.sqrt(12 * len(ranks))
    return math.erfc(abs(deviation) / math.sqrt(2))


def chi_square_tail(value: float, freedom: int) -> float:
    """Probability that a chi-square variable with so many degrees of freedom exceeds `value`."""
    half = torch.tensor([freedom / 2, value / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def permutation_p_value(first: Sequence[NDArray[np.int64]], second: Sequence[NDArray[np.int64]], seed: int) -> float:
    """Chance that two samples of outputs differ at least this much if both follow one law.

    The statistic is that of the chi-square test of homogeneity, summed over prompts and positions. Its law comes
    from exchanging outputs between the samples of a prompt, so that neither rare tokens nor the
    dependence between the positions of an output matter.

    Args:
        first, second: for each prompt, `[num_outputs, num_positions]` token ids; equal numbers in both.
    """
    generator = np.random.default_rng(seed)
    observed, exchanged = 0.0, np.zeros(PERMUTATIONS)
    for ours, theirs in zip(first, second, strict=True):
        indicators = _indicators(np.concatenate([ours, theirs]))
        labels = np.repeat(np.array([1.0, 0.0], dtype=np.float32), [len(ours), len(theirs)])
        observed += float(_distance(labels[None], indicators)[0])
        for start in range(0, PERMUTATIONS, _CHUNK):
            size = min(_CHUNK, PERMUTATIONS - start)
            shuffled = generator.permuted(np.tile(labels, (size, 1)), axis=1)
            exchanged[start : start + size] += _distance(shuffled, indicators)
    as_odd = int((exchanged >= observed * (1 - 1e-9)).sum())
    return (1 + as_odd) / (1 + PERMUTATIONS)


def _indicators(outputs: NDArray[np.int64]) -> Labels:
    """`[num_outputs, num_kinds]`: which output has which token at which position."""
    columns = [np.unique(column, return_inverse=True)[1] for column in outputs.T]
    return np.concatenate([np.eye(column.max() + 1, dtype=np.float32)[column] for column in columns], axis=1)


def _distance(labels: Labels, indicators: Labels) -> NDArray[np.float64]:
    """`[num_labellings]`: the sum of (a - b)^2 / (a + b) over all kinds, for counts a and b of two equal samples."""
    totals = indicators.sum(axis=0, dtype=np.float64)
    counts = (labels @ indicators).astype(np.float64)
    distance: NDArray[np.float64] = ((2 * counts - totals) ** 2 / totals).sum(axis=1)
    return distance
