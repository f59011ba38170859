"""Percentiles of measured values: a mean alone hides what the unlucky requests see."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

RANKS = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """How some values are spread; all are 0 without values.

    Args:
        count: number of values.
        mean: their arithmetic mean.
        p50, p95, p99: the value that this many percent of them do not exceed.
        largest: the largest value.
    """

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0
    largest: float = 0.0


def percentiles(values: Iterable[float]) -> Percentiles:
    """Summary of `values`, with straight lines between order statistics.

    Source: Hyndman and Fan 1996, "Sample quantiles in statistical packages", definition 7.
    """
    array = np.fromiter(values, dtype=np.float64)
    if array.size == 0:
        return Percentiles()
    p50, p95, p99 = np.percentile(array, RANKS).tolist()
    return Percentiles(array.size, float(array.mean()), p50, p95, p99, float(array.max()))
