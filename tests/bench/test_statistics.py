import math
import random

import pytest

from gamaneh.bench.statistics import geometric_mean


def test_a_ratio_and_its_inverse_cancel() -> None:
    assert geometric_mean([4.0, 0.25]).value == pytest.approx(1.0)


def test_equal_ratios_leave_no_doubt() -> None:
    interval = geometric_mean([1.5] * 10)

    assert (interval.low, interval.high) == (pytest.approx(1.5), pytest.approx(1.5))


def test_the_interval_holds_the_true_mean_about_as_often_as_it_says() -> None:
    noise = random.Random(1)
    truth = math.log(1.8)
    held = 0
    for _ in range(200):
        interval = geometric_mean([math.exp(noise.gauss(truth, 0.3)) for _ in range(40)])
        held += interval.low <= 1.8 <= interval.high

    assert 0.89 <= held / 200 <= 0.99


def test_more_ratios_narrow_the_interval() -> None:
    noise = random.Random(2)
    ratios = [math.exp(noise.gauss(0.5, 0.4)) for _ in range(400)]
    few, many = geometric_mean(ratios[:20]), geometric_mean(ratios)

    assert many.high - many.low < (few.high - few.low) / 2


def test_equal_ratios_give_equal_intervals() -> None:
    assert geometric_mean([1.0, 2.0, 3.0]) == geometric_mean([1.0, 2.0, 3.0])


@pytest.mark.parametrize("ratios", [[], [1.0, 0.0], [-1.0]])
def test_ratios_without_a_logarithm_are_refused(ratios: list[float]) -> None:
    with pytest.raises(ValueError, match="ratios must be positive"):
        geometric_mean(ratios)
