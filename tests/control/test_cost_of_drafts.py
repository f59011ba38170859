"""What drafts cost is learned as a line in their length, whatever lengths are made."""

from __future__ import annotations

import random

import pytest

from gamaneh.control.cost import DraftCost


def test_lengths_that_are_never_made_follow_those_that_are() -> None:
    """Measured once at start-up, long drafts must not stay dear when short ones turn out to be cheap."""
    cost = DraftCost()
    for depth in (1, 8):
        cost.anchor(depth, 0.8 * depth)
    for _ in range(60):
        cost.observe(1, 0.4, batch=1, lag=1)
        cost.observe(2, 0.8, batch=1, lag=1)
    assert cost.value(8, batch=1, lag=0) == pytest.approx(3.2, rel=0.1)


def test_a_fixed_part_and_a_part_for_each_level_are_told_apart() -> None:
    cost, generator = DraftCost(), random.Random(1)
    for _ in range(200):
        depth, batch = generator.randint(1, 8), generator.randint(1, 4)
        taken = (0.2 + 0.1 * depth + 0.02 * depth * (batch - 1)) * generator.uniform(0.95, 1.05)
        cost.observe(depth, taken, batch, lag=batch)
    assert cost.value(1, 1, 0) == pytest.approx(0.3, rel=0.1)
    assert cost.value(8, 1, 0) == pytest.approx(1.0, rel=0.1)
    assert cost.value(8, 4, 0) == pytest.approx(1.48, rel=0.1)


def test_what_takes_the_same_at_any_length_costs_the_same_at_any_length() -> None:
    cost = DraftCost()
    for depth in [1, 2, 4, 8] * 20:
        cost.observe(depth, 0.5, batch=1, lag=0)
    assert [cost.value(depth, 1, 0) for depth in (1, 4, 12)] == pytest.approx([0.5] * 3, rel=0.1)


def test_no_part_of_the_cost_is_negative() -> None:
    cost = DraftCost()
    for depth, taken in [(1, 0.1), (4, 1.6), (8, 6.4)] * 20:
        cost.observe(depth, taken, batch=1, lag=0)
    assert cost.value(1, 1, 0) > 0


def test_a_draft_that_takes_many_times_its_due_moves_little() -> None:
    cost = DraftCost()
    for _ in range(30):
        cost.observe(4, 0.4, batch=1, lag=0)
    cost.observe(4, 8.0, batch=1, lag=0)
    assert cost.value(4, 1, 0) == pytest.approx(0.4, rel=0.25)
