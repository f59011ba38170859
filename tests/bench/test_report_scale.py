"""Axes: values in order, round ticks, nothing outside of the frame."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gamaneh.bench.report.scale import Axis, amount_axis, level_axis, place_axis, ratio_axis, share_axis

AMOUNTS = st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=8)
RATIOS = st.lists(st.floats(0.05, 50.0), min_size=1, max_size=8)


def assert_sound(axis: Axis) -> None:
    places = [axis.place(tick, 0.0, 100.0) for tick in axis.ticks]
    assert places == sorted(places)
    assert all(axis.low <= tick <= axis.high for tick in axis.ticks)


@given(AMOUNTS)
def test_amounts_begin_at_zero_and_fit(values: list[float]) -> None:
    axis = amount_axis(values, str)
    assert_sound(axis)
    assert axis.ticks[0] == 0.0 and 2 <= len(axis.ticks) <= 7
    assert axis.high >= max(values) * (1 - 1e-9)
    assert axis.high <= max(values) * 2.1


@given(RATIOS)
def test_ratios_fit_and_equality_is_always_a_tick(values: list[float]) -> None:
    axis = ratio_axis(values, str)
    assert_sound(axis)
    assert 1.0 in axis.ticks
    assert axis.low < min(values) and axis.high > max(values)


def test_equal_ratios_are_equally_far_apart() -> None:
    axis = ratio_axis([0.5, 2.0], str)
    below, middle, above = (axis.place(value, 0.0, 1.0) for value in (0.5, 1.0, 2.0))
    assert above - middle == pytest.approx(middle - below)


def test_levels_are_their_own_ticks() -> None:
    axis = level_axis([8, 1, 2, 2, 4], str)
    assert axis.ticks == [1, 2, 4, 8]
    assert_sound(axis)


def test_a_single_level_stands_in_the_middle() -> None:
    assert level_axis([4.0], str).place(4.0, 0.0, 100.0) == pytest.approx(50.0)


@pytest.mark.parametrize("count", [1, 2, 10, 11, 37])
def test_places_have_room_at_both_ends(count: int) -> None:
    axis = place_axis(count, str)
    assert len(axis.ticks) <= 10
    assert 0.0 < axis.place(1, 0.0, 1.0) <= axis.place(count, 0.0, 1.0) < 1.0


def test_values_outside_of_an_axis_stand_at_its_end() -> None:
    assert share_axis(str).place(1.7, 10.0, 20.0) == 20.0


def test_an_axis_may_run_backwards() -> None:
    assert share_axis(str).place(0.25, 100.0, 0.0) == 75.0


def test_no_amount_leaves_an_axis_to_draw() -> None:
    assert amount_axis([], str).high > 0.0
