"""A queue whose load is known: over its capacity it is found out, below it is not."""

from __future__ import annotations

import numpy as np
import pytest

from gamaneh.bench.saturation import Stay, growth, is_saturated

SERVICE = 0.1
"""Seconds of each request; 10 a second can be served."""


def one_server(rate: float, count: int, seed: int) -> list[Stay]:
    """Requests that come at random and are served one after the other."""
    noise = np.random.default_rng(seed)
    free, stays = 0.0, []
    for arrived in np.cumsum(noise.exponential(1 / rate, count)):
        free = max(free, arrived) + SERVICE
        stays.append(Stay(float(arrived), free))
    return stays


@pytest.mark.parametrize(("load", "expected"), [(0.5, 0), (0.8, 0), (1.5, 40), (3.0, 40)])
def test_saturation_is_found_where_it_is(load: float, expected: int) -> None:
    found = sum(is_saturated(one_server(10 * load, 200, seed)) for seed in range(40))
    assert abs(found - expected) <= 4


def test_growth_is_what_cannot_be_served() -> None:
    growths = [growth(one_server(20.0, 400, seed)) for seed in range(20)]
    assert np.mean(growths) == pytest.approx(20 - 10, rel=0.15)


def test_a_server_that_fills_up_once_is_not_saturated() -> None:
    """Many at once in the beginning, and enough time for all that follow."""
    stays = [Stay(at * 1.0, at + 0.9) for at in range(40)]
    assert not is_saturated(stays)
    assert growth(stays) == pytest.approx(0.0, abs=1e-9)


def test_a_few_requests_show_no_trend() -> None:
    assert growth([Stay(0.0, 9.0), Stay(1.0, 9.0)]) == 0.0


def test_requests_that_come_at_once_show_no_trend() -> None:
    assert not is_saturated([Stay(1.0, 2.0 + at) for at in range(20)])
