"""Ratios of paired measurements: their geometric mean and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_RESAMPLES = 2000
_SEED = 20250101


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95 % confidence interval."""

    value: float
    low: float
    high: float


def geometric_mean(ratios: Sequence[float]) -> Interval:
    """Geometric mean of positive ratios, with a percentile bootstrap interval over the ratios.

    The resampling is seeded, so equal ratios give equal intervals. With a single ratio the
    interval has no width and says nothing.

    Raises:
        ValueError: there is no ratio, or one is not positive.
    """
    if not ratios or min(ratios) <= 0:
        raise ValueError(f"ratios must be positive and at least one, got {list(ratios)}")
    logs = np.log(np.asarray(ratios, dtype=np.float64))
    draws = np.random.default_rng(_SEED).integers(len(logs), size=(_RESAMPLES, len(logs)))
    low, high = np.quantile(logs[draws].mean(axis=1), [0.025, 0.975])
    return Interval(float(np.exp(logs.mean())), float(np.exp(low)), float(np.exp(high)))
