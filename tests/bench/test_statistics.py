import math
import random

import pytest

from gamaneh.bench.statistics import geometric_mean, paired_ratio


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


def prompts_with_rounds(noise: random.Random, prompts: int, rounds: int) -> dict[str, list[float]]:
    """Prompts differ much, the rounds of one prompt little; the truth is 1.5."""
    found = {}
    for prompt in range(prompts):
        own = noise.gauss(math.log(1.5), 0.4)
        found[str(prompt)] = [math.exp(own + noise.gauss(0.0, 0.05)) for _ in range(rounds)]
    return found


def test_intervals_over_prompts_hold_the_truth_as_often_as_they_say() -> None:
    noise = random.Random(4)
    intervals = [paired_ratio(prompts_with_rounds(noise, 30, 4)) for _ in range(200)]
    held = sum(interval is not None and interval.low <= 1.5 <= interval.high for interval in intervals)

    assert 0.89 <= held / 200 <= 0.99


def test_rounds_are_not_taken_for_prompts() -> None:
    """As if each round were a prompt of its own, the interval would be half as wide and miss the truth."""
    noise = random.Random(4)
    pooled = [
        geometric_mean([ratio for own in prompts_with_rounds(noise, 30, 4).values() for ratio in own])
        for _ in range(200)
    ]

    assert sum(interval.low <= 1.5 <= interval.high for interval in pooled) / 200 < 0.8


def test_each_prompt_counts_once_however_often_it_was_measured() -> None:
    interval = paired_ratio({"often": [2.0] * 9, "once": [8.0]})

    assert interval is not None
    assert interval.value == pytest.approx(4.0)


def test_of_a_single_prompt_the_repetitions_are_resampled() -> None:
    interval = paired_ratio({"only": [1.0, 2.0, 4.0]})

    assert interval is not None
    assert interval.low < interval.value < interval.high


def test_without_ratios_there_is_no_interval() -> None:
    assert paired_ratio({"p": []}) is None
