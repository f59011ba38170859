"""Regret in simulated worlds: the controller is as fast as the best fixed length, and loses little where none pays."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from worlds import Score, World, compiled, flat, linear, run, steady

OF_BEST, OF_PLAIN = 0.95, 0.98
"""Least share of the speed of the best fixed length, and of plain decoding where no length pays."""

SPOILED = [(10.0, 1.0, 1.0), (0.1, 1.0, 1.0), (1.0, 10.0, 1.0), (1.0, 0.1, 1.0), (1.0, 1.0, 10.0), (1.0, 1.0, 0.1)]


def check(world: World, scores: Sequence[Score], survival: float) -> None:
    """From the second request on."""
    later = Score(
        seconds=sum(score.seconds for score in scores[1:]),
        best_seconds=sum(score.best_seconds for score in scores[1:]),
        plain_seconds=sum(score.plain_seconds for score in scores[1:]),
    )
    if world.best_fixed(survival) > world.fixed_rate(survival, 0):
        assert later.of_best >= OF_BEST
    else:
        assert later.of_plain >= OF_PLAIN


@pytest.mark.parametrize("rows", [flat, linear, compiled])
@pytest.mark.parametrize("draft", [0.02, 0.1, 0.35, 0.6])
@pytest.mark.parametrize("survival", [0.05, 0.35, 0.65, 0.9, 0.98])
def test_one_request_after_the_other(survival: float, draft: float, rows: Callable[[int], float]) -> None:
    world = World(survival=steady(survival), draft=draft, rows=rows)
    check(world, run(world, 4), survival)


@pytest.mark.parametrize("batch", [4, 16])
@pytest.mark.parametrize("draft", [0.02, 0.2])
@pytest.mark.parametrize("survival", [0.05, 0.5, 0.9])
def test_several_requests_at_once(survival: float, draft: float, batch: int) -> None:
    world = World(survival=steady(survival), draft=draft, batch=batch)
    check(world, run(world, 2), survival)


@pytest.mark.parametrize("spoiled", SPOILED, ids=lambda factors: "all{:g}-rows{:g}-drafts{:g}".format(*factors))
@pytest.mark.parametrize(("survival", "draft"), [(0.05, 0.1), (0.65, 0.1), (0.98, 0.02), (0.98, 0.35)])
def test_a_calibration_that_is_wrong_is_unlearned(survival: float, draft: float, spoiled) -> None:
    world = World(survival=steady(survival), draft=draft, rows=compiled, spoiled=spoiled)
    check(world, run(world, 3), survival)


@pytest.mark.parametrize("draft", [0.02, 0.1, 0.35, 0.6])
@pytest.mark.parametrize(("before", "after"), [(0.05, 0.9), (0.98, 0.05), (0.98, 0.5), (0.65, 0.9)])
def test_text_that_changes_its_nature(before: float, after: float, draft: float) -> None:
    """The third request is the first of the other kind."""
    world = World(survival=lambda number: before if number < 3 else after, draft=draft, rows=compiled)
    check(world, run(world, 6)[3:], after)


@pytest.mark.parametrize("draft", [0.02, 0.2, 0.6])
@pytest.mark.parametrize("batch", [1, 4])
def test_a_proposer_that_delivers_nothing_is_left(batch: int, draft: float) -> None:
    world = World(survival=steady(0.9), draft=draft, empty=True, batch=batch)
    check(world, run(world, 3), 0.9)


@pytest.mark.parametrize("draft", [0.02, 0.2, 0.6])
def test_the_first_request_pays_a_bounded_price(draft: float) -> None:
    """5 % of 200 rounds."""
    world = World(survival=steady(0.05), draft=draft, rows=linear)
    first = run(world, 1)[0]
    assert first.seconds - first.plain_seconds <= 10.0
