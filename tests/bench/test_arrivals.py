"""Arrivals have the rate and the spread that they are asked to have."""

from __future__ import annotations

import numpy as np
import pytest

from gamaneh.bench.arrivals import offsets, recorded_rate
from gamaneh.bench.result import Load
from gamaneh.errors import InvalidOption

MANY = 20_000


def gaps(pattern: str, rate: float, burstiness: float = 1.0, seed: int = 3) -> np.ndarray:
    return np.diff(offsets(Load(pattern, rate, MANY, 1, burstiness), seed))


def test_constant_arrivals_are_evenly_spaced() -> None:
    assert offsets(Load("constant", 4.0, 4, 1), seed=0) == pytest.approx([0.0, 0.25, 0.5, 0.75])


@pytest.mark.parametrize(("pattern", "burstiness"), [("poisson", 1.0), ("gamma", 1.0), ("gamma", 0.25), ("gamma", 4.0)])
def test_gaps_have_the_mean_and_the_variation_of_their_law(pattern: str, burstiness: float) -> None:
    drawn = gaps(pattern, 5.0, burstiness)
    assert drawn.mean() == pytest.approx(1 / 5, rel=0.05)
    assert drawn.std() / drawn.mean() == pytest.approx(burstiness**-0.5, rel=0.05)


def test_poisson_gaps_are_exponential() -> None:
    share = (gaps("poisson", 1.0) > 1.0).mean()
    assert share == pytest.approx(np.exp(-1), abs=0.01)


def test_both_sides_get_the_same_arrivals() -> None:
    load = Load("poisson", 2.0, 50, 1)
    assert offsets(load, seed=1) == offsets(load, seed=1) != offsets(load, seed=2)


def test_a_recording_is_replayed_from_its_first_request_on() -> None:
    recorded = [10.0, 10.5, 13.0]
    assert offsets(Load("replay", 1.0, 3, 1), seed=0, recorded=recorded) == [0.0, 0.5, 3.0]
    assert recorded_rate(recorded) == pytest.approx(2 / 3)


def test_requests_that_came_at_once_have_no_rate() -> None:
    assert recorded_rate([4.0, 4.0]) == 0.0


@pytest.mark.parametrize("recorded", [[1.0, 2.0], [3.0, 1.0, 2.0]])
def test_a_recording_that_does_not_fit_is_refused(recorded: list[float]) -> None:
    with pytest.raises(InvalidOption, match="trace must hold one ascending time for each request"):
        offsets(Load("replay", 1.0, 3, 1), seed=0, recorded=recorded)


def test_a_closed_loop_has_no_arrivals() -> None:
    with pytest.raises(InvalidOption, match="got 'closed'"):
        offsets(Load("closed", 1.0, 3, 1), seed=0)
