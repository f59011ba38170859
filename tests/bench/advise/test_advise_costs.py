import numpy as np
import pytest

from gamaneh.bench.advise.costs import Costs, Surface


def test_a_measured_cell_is_its_median() -> None:
    assert Surface({(1, 0): (3.0, 1.0, 20.0)}).seconds(1, 0) == 3.0


@pytest.mark.parametrize(("rows", "seconds"), [(0, 1.0), (2, 2.0), (4, 3.0), (8, 5.0)])
def test_between_and_behind_the_measured_sizes_lines_are_straight(rows: int, seconds: float) -> None:
    assert Surface({(1, 0): (1.0,), (1, 4): (3.0,)}).seconds(1, rows) == pytest.approx(seconds)


def test_a_falling_line_does_not_go_on() -> None:
    assert Surface({(1, 0): (1.0,), (1, 4): (0.5,)}).seconds(1, 100) == 0.5


@pytest.mark.parametrize(("batch", "seconds"), [(1, 1.0), (2, 1.5), (3, 2.0), (5, 3.0)])
def test_batches_between_the_measured_ones(batch: int, seconds: float) -> None:
    assert Surface({(1, 0): (1.0,), (3, 0): (2.0,)}).seconds(batch, 0) == pytest.approx(seconds)


def test_a_batch_between_two_has_the_rows_of_both() -> None:
    surface = Surface({(1, 0): (1.0,), (1, 4): (2.0,), (3, 0): (3.0,), (3, 12): (6.0,)})
    assert surface.seconds(2, 4) == pytest.approx((2.0 + 4.0) / 2)


def test_cells_of_the_same_turn_are_drawn_together() -> None:
    surface = Surface({(1, 0): (1.0, 10.0, 100.0), (1, 1): (2.0, 20.0, 200.0)})
    again = surface.resampled(np.random.default_rng(0))
    for one, two in zip(again.cells[1, 0], again.cells[1, 1], strict=True):
        assert two == 2 * one


def test_resampling_changes_the_medians() -> None:
    surface = Surface({(1, 0): (1.0, 2.0, 3.0)})
    draws = np.random.default_rng(0)
    assert {surface.resampled(draws).seconds(1, 0) for _ in range(50)} == {1.0, 2.0, 3.0}


def test_a_round_is_its_step_and_its_drafts() -> None:
    costs = Costs(Surface({(1, 0): (1.0,), (1, 4): (1.2,)}), Surface({(1, 4): (0.5,)}))
    assert costs.round_seconds(1, 4, 4) == pytest.approx(1.7)
    assert costs.plain.round_seconds(1, 4, 4) == pytest.approx(1.2)
