"""Figures of synthetic answers whose times are known."""

from __future__ import annotations

import os
from collections import Counter

import numpy as np
import pytest
from fake_sides import answer, measured, records, stretch

from gamaneh.bench.counts import Counts
from gamaneh.bench.result import Load, Price, Slo
from gamaneh.bench.run.figures import distribution, meets, side_figures, whole_figures
from gamaneh.bench.run.groups import make_point
from gamaneh.bench.run.measure import Measured
from gamaneh.bench.traffic import Answer

SLO = Slo(ttft=1.0, tpot=0.5)


def even(sent: float, first: float, gap: float, tokens: int, **more: object) -> Answer:
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
    failed.error = "broke"
    figures = side_figures(records([failed, even(0.0, 1.0, 1.0, 3)]))
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
        failed.error = "broke"
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
    def both(self, gain: dict[str, float], rounds: int = 1) -> Measured:
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
