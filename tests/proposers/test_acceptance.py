"""The table of acceptance begins with the drafter's word and ends with what happened."""

from __future__ import annotations

import random

import pytest

from gamaneh.proposers.acceptance import MEMORY, AcceptanceTable


def test_the_drafter_is_believed_before_anything_was_seen() -> None:
    assert AcceptanceTable().chance(1, False, 0.37) == pytest.approx(0.37)


def test_an_overconfident_drafter_is_found_out() -> None:
    table, chooser = AcceptanceTable(), random.Random(1)
    for _ in range(500):
        table.learn(2, False, 0.85, chooser.random() < 0.4)
    assert table.chance(2, False, 0.85) == pytest.approx(0.4, abs=0.06)


def test_positions_and_ways_of_drawing_are_told_apart() -> None:
    table = AcceptanceTable()
    for _ in range(100):
        table.learn(1, False, 0.5, True)
    assert table.chance(1, False, 0.5) > 0.9
    assert table.chance(2, False, 0.5) == table.chance(1, True, 0.5) == 0.5


def test_what_changed_is_learned_again() -> None:
    table = AcceptanceTable()
    for accepted in (True, False):
        for _ in range(2 * int(MEMORY)):
            table.learn(0, True, 1.0, accepted)
    assert table.chance(0, True, 1.0) < 0.3


def test_the_reliability_table_tells_confidence_share_and_count() -> None:
    table = AcceptanceTable()
    for accepted in (True, True, True, False):
        table.learn(1, True, 0.62, accepted)
    (line,) = table.reliability()
    assert (line.kind, line.seen, line.accepted) == ((1, True), 4, 0.75)
    assert line.confidence == pytest.approx(0.62)
