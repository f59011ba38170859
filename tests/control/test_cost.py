"""Costs are learned from noisy steps: by size, batch and tokens, with outliers, on a machine that changes pace."""

from __future__ import annotations

import random

import pytest

from gamaneh.control.cost import CostModel, StepCost


def noisy(generator: random.Random, seconds: float) -> float:
    """A few per cent of noise, and one step in ten that takes up to ten times as long."""
    return seconds * generator.uniform(0.97, 1.03) * (generator.uniform(2, 10) if generator.random() < 0.1 else 1.0)


def test_between_measured_sizes_lies_a_straight_line() -> None:
    cost = StepCost()
    for size, seconds in {1: 1.0, 5: 3.0, 9: 3.0}.items():
        cost.anchor(size, seconds)
    assert [cost.seconds(size) for size in (1, 3, 5, 7, 9)] == pytest.approx([1.0, 2.0, 3.0, 3.0, 3.0])


def test_beyond_the_measured_sizes_the_last_slope_goes_on() -> None:
    cost = StepCost()
    for size, seconds in {1: 1.0, 4: 1.0, 8: 2.0}.items():
        cost.anchor(size, seconds)
    assert cost.seconds(12) == pytest.approx(3.0)


def test_a_single_size_speaks_for_all_verifies_and_in_proportion_for_drafts() -> None:
    cost = CostModel()
    cost.anchor_verify(1, 1.0)
    cost.anchor_draft("drafter", 2, 0.5)
    assert cost.verify_seconds(16) == pytest.approx(1.0)
    assert cost.draft_seconds("drafter", 8) == pytest.approx(2.0)


def test_without_measurement_a_verify_counts_as_one_and_drafts_as_nothing() -> None:
    assert CostModel().verify_seconds(7) == 1.0
    assert CostModel().draft_seconds("drafter", 7) == 0.0


def test_sizes_are_counted_as_they_are_computed() -> None:
    cost = CostModel(lambda rows: -(-rows // 16) * 16)
    cost.anchor_verify(3, 2.0)
    cost.anchor_verify(17, 5.0)
    assert cost.verify_seconds(16) == pytest.approx(2.0)
    assert cost.verify_seconds(32) == pytest.approx(5.0)


def test_outliers_move_little() -> None:
    generator, cost = random.Random(1), StepCost()
    cost.anchor(1, 1.0)
    for _ in range(300):
        cost.observe(1, noisy(generator, 1.0))
    assert cost.seconds(1) == pytest.approx(1.0, abs=0.15)


def test_a_wrong_measurement_at_start_is_put_right() -> None:
    generator, cost = random.Random(2), StepCost()
    cost.anchor(1, 1.0)
    cost.anchor(16, 4.0)
    for _ in range(100):
        cost.observe(1, noisy(generator, 1.0))
        cost.observe(16, noisy(generator, 1.2))
    assert cost.seconds(16) / cost.seconds(1) == pytest.approx(1.2, abs=0.15)


def test_when_the_machine_slows_down_sizes_that_are_not_seen_are_scaled_as_well() -> None:
    cost = StepCost()
    cost.anchor(1, 1.0)
    cost.anchor(16, 2.0)
    for _ in range(100):
        cost.observe(1, 1.0)
    for _ in range(60):
        cost.observe(1, 2.0)
    assert cost.seconds(1) == pytest.approx(2.0, rel=0.1)
    assert cost.seconds(16) / cost.seconds(1) > 1.6


def test_the_cost_of_context_and_of_the_batch_is_learned() -> None:
    generator, cost = random.Random(3), StepCost()
    cost.anchor(1, 1.0)
    cost.anchor(64, 1.0)

    def truth(batch: int, tokens: int) -> float:
        return 1.0 + 0.05 * (batch - 1) + tokens / 4096

    for _ in range(400):
        batch, tokens = generator.randint(1, 16), generator.randint(0, 8192)
        cost.observe(16, noisy(generator, truth(batch, tokens)), batch, tokens)
    for batch, tokens in ((1, 0), (1, 8192), (16, 0), (16, 8192)):
        assert cost.seconds(16, batch, tokens) == pytest.approx(truth(batch, tokens), rel=0.25)


def test_reading_a_prompt_is_not_taken_for_drafting() -> None:
    """The first draft of each request is mostly reading; it must not make drafts of that length look dear."""
    cost = CostModel()
    cost.anchor_draft("drafter", 1, 0.1)
    for _ in range(50):
        cost.observe_draft("drafter", 2, 0.2 + 100 * 0.01, lag=100)
    assert cost.draft_seconds("drafter", 2) == pytest.approx(0.2, rel=0.01)
    assert cost.draft_seconds("drafter", 2, lag=50) == pytest.approx(0.7, rel=0.01)


def test_before_a_draft_without_reading_a_candidate_counts_as_a_token_read() -> None:
    cost = CostModel()
    cost.observe_draft("drafter", 2, 1.02, lag=100)
    assert cost.knows("drafter")
    assert cost.draft_seconds("drafter", 3) == pytest.approx(0.03)


def test_drafts_of_several_proposers_are_kept_apart() -> None:
    cost = CostModel()
    cost.observe_draft("one", 1, 0.5)
    cost.observe_draft("two", 2, 0.25)
    assert cost.draft_seconds("one", 1) == pytest.approx(0.5)
    assert cost.draft_seconds("two", 2) == pytest.approx(0.25)
    assert not cost.knows("three")


def test_drafts_that_were_slow_with_the_machine_are_quick_again_with_it() -> None:
    """A proposer that is left out gives no new measurements."""
    cost = CostModel()
    for pace in [1.0] * 20 + [4.0] * 40:
        cost.observe_verify(1, pace)
        cost.observe_draft("drafter", 4, 0.2 * pace)
    for _ in range(20):
        cost.observe_verify(1, 1.0)
    assert cost.draft_seconds("drafter", 4) == pytest.approx(0.2, rel=0.1)
