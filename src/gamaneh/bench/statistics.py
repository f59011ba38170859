"""Ratios of paired measurements: their geometric mean and how sure it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def paired_ratio(ratios: Mapping[str, Sequence[float]]) -> Interval | None:
    """Geometric mean over prompts of each prompt's own geometric mean; None without ratios.

    Repeated measurements of one prompt are alike, and counting each as a prompt of its own would
    make the interval too narrow: only the prompts are resampled. Of a single prompt its
    repetitions are.

    Args:
        ratios: of each prompt, one for each time that it was measured.
    """
    known = [list(own) for own in ratios.values() if own]
    if not known:
        return None
    return geometric_mean(known[0] if len(known) == 1 else [geometric_mean(own).value for own in known])
