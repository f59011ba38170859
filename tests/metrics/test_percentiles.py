"""Percentiles of known values."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gamaneh.metrics.percentiles import Percentiles, percentiles

FINITE = st.floats(min_value=0, max_value=1e6)


def test_values_between_two_measured_ones_lie_on_a_line() -> None:
    assert percentiles(range(101)) == Percentiles(101, 50.0, 50.0, 95.0, 99.0, 100.0)
    assert percentiles([1.0, 2.0]).p95 == pytest.approx(1.95)


def test_nothing_measured_gives_zeros() -> None:
    assert percentiles([]) == Percentiles(0, 0.0, 0.0, 0.0, 0.0, 0.0)


def test_one_slow_request_shows_in_the_tail_and_not_in_the_median() -> None:
    summary = percentiles([1.0] * 99 + [100.0])
    assert (summary.p50, summary.largest) == (1.0, 100.0)
    assert summary.p99 > 1.9


@settings(deadline=None)
@given(st.lists(FINITE, min_size=1))
def test_percentiles_are_in_order_and_within_the_values(values: list[float]) -> None:
    summary = percentiles(values)
    assert min(values) <= summary.p50 <= summary.p95 <= summary.p99 <= summary.largest == max(values)
