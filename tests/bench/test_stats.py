"""Figures of synthetic answers whose times are known."""

from __future__ import annotations

import math
import os
import random
from collections import Counter

import numpy as np
import pytest
from fake_sides import answer, measured, records, stretch

from gamaneh.bench.record import Counts, MeasuredLoad, Record
from gamaneh.bench.result import Load, Price, Slo
from gamaneh.bench.stats import (
    OTHER_SIDE,
    Stay,
    distribution,
    geometric_mean,
    growth,
    is_saturated,
    make_point,
    meets,
    paired_ratio,
    side_figures,
    whole_figures,
)

SLO = Slo(ttft=1.0, tpot=0.5)


def even(sent: float, first: float, gap: float, tokens: int, **more: object) -> Record:
    """Tokens that come one by one, evenly."""
    return answer(sent, *(sent + first + gap * at for at in range(tokens)), **more)


def test_percentiles_are_those_of_a_known_law() -> None:
    drawn = np.random.default_rng(1).exponential(2.0, 200_000)
    spread = distribution(drawn)
    assert spread is not None
    known = [-2.0 * np.log(1 - share) for share in (0.5, 0.95, 0.99)]
    assert [spread.p50, spread.p95, spread.p99] == pytest.approx(known, rel=0.03)
    assert spread.mean == pytest.approx(2.0, rel=0.02)
    assert len(spread.quantiles) == 21
    assert (spread.quantiles[0], spread.quantiles[-1]) == (drawn.min(), drawn.max())


def test_percentiles_of_a_few_values_lie_between_them() -> None:
    spread = distribution([1.0, 2.0, 3.0, 4.0])
    assert spread is not None
    assert (spread.p50, spread.largest, spread.count) == (2.5, 4.0, 4)


def test_nothing_has_no_spread() -> None:
    assert distribution([]) is None


def test_latencies_are_computed_by_their_formulas() -> None:
    figures = side_figures(records([even(10.0, 0.5, 0.1, 11), even(20.0, 1.5, 0.3, 11)]))
    assert figures.ttft is not None and figures.tpot is not None and figures.e2e is not None and figures.itl is not None
    assert figures.ttft.mean == pytest.approx(1.0)
    assert figures.tpot.mean == pytest.approx(0.2)
    assert figures.e2e.mean == pytest.approx((1.5 + 4.5) / 2)
    assert (figures.itl.count, figures.itl.largest) == (20, pytest.approx(0.3))
    assert figures.decode_tokens_per_second == pytest.approx(20 / 4.0)
    assert (figures.output_tokens, figures.requests) == (22, 2)


def test_tokens_that_come_together_are_one_delivery() -> None:
    figures = side_figures(records([answer(0.0, 1.0, 2.0, 3.0, tokens=9)]))
    assert figures.itl is not None and figures.tpot is not None
    assert figures.itl.p50 == 1.0
    assert figures.tpot.p50 == pytest.approx(2 / 8)


def test_a_single_token_has_no_time_per_token() -> None:
    figures = side_figures(records([answer(0.0, 1.0), answer(0.0, 1.0, tokens=4)]))
    assert figures.tpot is None
    assert figures.decode_tokens_per_second is None


def test_failed_answers_are_left_out() -> None:
    failed = answer(0.0, 1.0, 2.0)
    failed.error, failed.reason = "broke", "broken"
    figures = whole_figures([stretch([failed, even(0.0, 1.0, 1.0, 3)], 4.0)], None, None)
    assert (figures.requests, figures.output_tokens) == (1, 3)


def test_the_split_adds_up_to_the_latency() -> None:
    one = even(0.0, 1.0, 0.5, 5, queue=0.25, prefill=0.75, draft=0.5, verify=1.25)
    split = side_figures(records([one, one])).split
    assert (split.queue, split.prefill, split.draft, split.verify) == (0.5, 1.5, 1.0, 2.5)
    assert split.decode == pytest.approx(4.0)
    assert split.other == pytest.approx(0.5)


def test_a_split_that_one_answer_does_not_tell_is_not_known() -> None:
    split = side_figures(records([even(0.0, 1.0, 0.5, 5, queue=0.25), even(0.0, 1.0, 0.5, 5)])).split
    assert (split.queue, split.draft, split.other) == (None, None, None)


def test_throughput_counts_the_seconds_of_all_turns() -> None:
    turns = [stretch([even(0.0, 1.0, 0.5, 5)] * 2, seconds=4.0, cpu_seconds=6.0)] * 3
    figures = whole_figures(turns, None, None)
    assert (figures.seconds, figures.tokens_per_second, figures.requests_per_second) == (12.0, 2.5, 0.5)
    assert figures.utilisation == pytest.approx(18.0 / (12.0 * (os.cpu_count() or 1)))
    assert figures.goodput is None and figures.cost_per_million is None


def test_pooled_and_macro_acceptance_weigh_requests_differently() -> None:
    large, small = Counts(90, 20, 10, 100, 110), Counts(1, 20, 10, 10, 21)
    told = side_figures(records([even(0, 1, 1, 3, counts=large), even(0, 1, 1, 3, counts=small)])).speculation
    assert told is not None
    assert told.acceptance_rate == pytest.approx(91 / 110)
    assert told.acceptance_rate_macro == pytest.approx((0.9 + 0.1) / 2)
    assert told.tokens_per_round == pytest.approx(131 / 40)
    assert told.accepted_per_draft == pytest.approx(91 / 20)


def test_survival_is_that_of_all_requests_together() -> None:
    counts = Counts(3, 2, 2, 6, 5, Counter({0: 2, 1: 1}), Counter({0: 2, 1: 2, 2: 2}))
    told = side_figures(records([even(0, 1, 1, 3, counts=counts)] * 2)).speculation
    assert told is not None
    assert (told.survival, told.offered) == ((1.0, 0.5, 0.0), (4, 4, 4))


def test_a_server_that_counts_fills_in_for_requests_that_do_not() -> None:
    counts = Counts(6, drafts=4, drafted=12, accepted_at=Counter({0: 4, 1: 2}), offered_at=Counter({0: 4, 1: 4}))
    figures = whole_figures([stretch([even(0, 1, 1, 3)], 3.0, counts=counts)] * 2, None, None)
    assert figures.speculation is not None
    assert (figures.speculation.source, figures.speculation.accepted, figures.speculation.drafts) == ("server", 12, 8)
    assert figures.speculation.survival == (1.0, 0.5)


def test_requests_that_count_get_survival_from_the_server() -> None:
    counts = Counts(6, drafts=4, drafted=12, accepted_at=Counter({0: 4}), offered_at=Counter({0: 8}))
    told = even(0, 1, 1, 3, counts=Counts(6, 9, 4, 12, 15))
    figures = whole_figures([stretch([told], 3.0, counts=counts)], None, None)
    assert figures.speculation is not None
    assert (figures.speculation.source, figures.speculation.survival) == ("requests", (0.5,))


class TestGoodput:
    def test_an_answer_meets_objectives_up_to_their_limits(self) -> None:
        assert meets(even(0.0, 1.0, 0.5, 3), SLO)
        assert not meets(even(0.0, 1.01, 0.5, 3), SLO)
        assert not meets(even(0.0, 1.0, 0.51, 3), SLO)
        assert meets(even(0.0, 1.0, 0.5, 1), SLO)
        assert not meets(even(0.0, 1.0, 0.5, 3), Slo(e2e=1.9))

    def test_requests_and_tokens_of_those_that_met_them_are_counted(self) -> None:
        failed = even(0.0, 0.1, 0.1, 3)
        failed.error, failed.reason = "broke", "broken"
        turn = stretch([even(0.0, 0.5, 0.1, 10), even(0.0, 2.0, 0.1, 30), failed, even(0.0, 0.5, 0.1, 6)], seconds=8.0)
        goodput = whole_figures([turn], SLO, None).goodput
        assert goodput is not None
        assert (goodput.met, goodput.share) == (2, 0.5)
        assert (goodput.requests_per_second, goodput.tokens_per_second) == (0.25, 2.0)


def test_a_million_tokens_cost_what_their_seconds_cost() -> None:
    turn = stretch([even(0.0, 1.0, 0.1, 100)], seconds=10.0)
    figures = whole_figures([turn], None, Price(3.6, "EUR", "2026-01-01"))
    assert figures.cost_per_million == pytest.approx(3.6 / 3600 * 1e6 / 10)


class TestPoint:
    def both(self, gain: dict[str, float], rounds: int = 1) -> MeasuredLoad:
        """Speculative gaps are those of plain divided by the gain of the prompt's category."""
        sides: dict[str, list] = {"plain": [], "speculative": []}
        for number in range(rounds):
            plain = [even(0.0, 1.0, 1.0, 11) for _ in range(8)]
            fast = [even(0.0, 1.0, 1.0 / gain[("chat", "code")[at % 2]], 11) for at in range(8)]
            sides["plain"].append(stretch(plain, 80.0, number))
            sides["speculative"].append(stretch(fast, 40.0, number))
        return measured(sides["plain"], sides["speculative"])

    def test_the_speed_up_of_each_group_is_that_of_its_prompts(self) -> None:
        point = make_point(self.both({"chat": 2.0, "code": 4.5}, rounds=2), None, None)
        found = {group.name: group.speedup.value for group in point.groups if group.speedup}
        assert found == pytest.approx({"all": 3.0, "chat": 2.0, "code": 4.5, "en": 3.0, "fa": 3.0})
        assert [group.kind for group in point.groups] == ["all", "category", "category", "language", "language"]
        assert [group.name for group in point.by("category")] == ["chat", "code"]

    def test_equal_prompts_leave_no_doubt_about_it(self) -> None:
        speedup = make_point(self.both({"chat": 2.0, "code": 2.0}), None, None).whole.speedup
        assert speedup is not None
        assert (speedup.low, speedup.high) == (pytest.approx(2.0), pytest.approx(2.0))

    def test_the_prompt_counts_in_the_speed_up_of_the_whole_answer(self) -> None:
        whole = make_point(self.both({"chat": 2.0, "code": 2.0}), None, None).whole
        assert whole.e2e_speedup is not None
        assert whole.e2e_speedup.value == pytest.approx(11.0 / 6.0)

    def test_throughput_is_compared_turn_by_turn(self) -> None:
        point = make_point(self.both({"chat": 2.0, "code": 2.0}, rounds=3), None, None)
        assert point.throughput is not None
        assert point.throughput.value == pytest.approx(2.0)

    def test_only_open_loads_can_saturate(self) -> None:
        assert make_point(self.both({"chat": 1.0, "code": 1.0}), None, None).saturation is None
        one = [stretch([even(float(at), 0.1, 0.0, 2) for at in range(20)], 20.0)]
        two = [stretch([even(float(at), 0.1 + at, 0.0, 2) for at in range(20)], 40.0)]
        saturation = make_point(measured(one, two, Load("poisson", 1.0, 20, 1)), None, None).saturation
        assert saturation is not None
        assert (saturation.plain, saturation.speculative) == (False, True)


class TestLeftOut:
    """Both sides' figures are of the same requests, and what is left out is counted by reason."""

    @staticmethod
    def failing(reason: str) -> Record:
        failed = even(0.0, 1.0, 1.0, 50)
        failed.error, failed.reason = "it broke", reason
        return failed

    def point(self):
        plain = [stretch([even(0.0, 1.0, 0.1, 11), self.failing("refused"), even(0.0, 1.0, 0.3, 11)], 9.0)]
        speculative = [stretch([even(0.0, 1.0, 0.05, 11), even(0.0, 1.0, 0.05, 11), self.failing("empty")], 9.0)]
        return make_point(measured(plain, speculative), Slo(e2e=99.0), None)

    def test_means_of_both_sides_are_over_the_same_requests(self) -> None:
        whole = self.point().whole
        assert (whole.plain.requests, whole.speculative.requests) == (1, 1)
        assert whole.plain.tpot is not None and whole.speculative.tpot is not None and whole.speedup is not None
        assert whole.plain.tpot.mean / whole.speculative.tpot.mean == pytest.approx(whole.speedup.value)

    def test_each_answer_that_is_left_out_is_counted_by_reason(self) -> None:
        whole = self.point().whole
        assert whole.plain.left_out == {"refused": 1, OTHER_SIDE: 1}
        assert whole.speculative.left_out == {"empty": 1, OTHER_SIDE: 1}

    def test_failed_answers_are_not_in_the_throughput(self) -> None:
        point = self.point()
        assert point.throughput is not None
        assert point.throughput.value == pytest.approx(1.0)
        assert point.whole.plain.tokens_per_second == pytest.approx(11 / 9.0)

    def test_a_failed_request_meets_no_objective(self) -> None:
        goodput = self.point().whole.plain.goodput
        assert goodput is not None and (goodput.met, goodput.share) == (2, pytest.approx(2 / 3))

    def test_the_least_reliable_count_of_tokens_is_told(self) -> None:
        told = [even(0.0, 1.0, 1.0, 3, tokens_from=source) for source in ("usage", "deliveries", "usage")]
        assert side_figures(records(told)).tokens_from == "deliveries"

    def test_figures_of_an_approximate_rule_say_so(self) -> None:
        point = make_point(
            measured([stretch([even(0.0, 1.0, 0.1, 3)], 1.0)], [stretch([even(0.0, 1.0, 0.1, 3)], 1.0)]),
            None,
            None,
            approximate=True,
        )
        assert (point.whole.plain.approximate, point.whole.speculative.approximate) == (False, True)


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


SERVICE = 0.1
"""Seconds of each request; 10 a second can be served."""


def one_server(rate: float, count: int, seed: int) -> list[Stay]:
    """Requests that come at random and are served one after the other."""
    noise = np.random.default_rng(seed)
    free, stays = 0.0, []
    for arrived in np.cumsum(noise.exponential(1 / rate, count)):
        free = max(free, arrived) + SERVICE
        stays.append((float(arrived), free))
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
    stays = [(at * 1.0, at + 0.9) for at in range(40)]
    assert not is_saturated(stays)
    assert growth(stays) == pytest.approx(0.0, abs=1e-9)


def test_a_few_requests_show_no_trend() -> None:
    assert growth([(0.0, 9.0), (1.0, 9.0)]) == 0.0


def test_requests_that_come_at_once_show_no_trend() -> None:
    assert not is_saturated([(1.0, 2.0 + at) for at in range(20)])
