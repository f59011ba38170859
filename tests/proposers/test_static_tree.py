"""Static trees hold the nodes that are most likely to be accepted."""

from __future__ import annotations

import itertools
import math

import pytest

from gamaneh.core import ROOT, Draft
from gamaneh.proposers.tree import Shares, static_tree, widths

SHARES: Shares = ((0.5, 0.2, 0.1), (0.4, 0.2, 0.05), (0.3, 0.1))


def chances(shares: Shares, max_depth: int) -> list[float]:
    """Of every possible node, best first."""
    paths = (itertools.product(*shares[:depth]) for depth in range(1, min(max_depth, len(shares)) + 1))
    return sorted((math.prod(path) for path in itertools.chain(*paths)), reverse=True)


@pytest.mark.parametrize("max_depth", [1, 2, 3, 9])
@pytest.mark.parametrize("max_nodes", [1, 2, 5, 12, 100])
def test_no_other_tree_is_expected_to_have_more_accepted(max_depth: int, max_nodes: int) -> None:
    places = static_tree(SHARES, max_depth, max_nodes)
    found = []
    for place in places:
        above = 1.0 if place.parent == ROOT else found[place.parent]
        found.append(above * SHARES[place.depth - 1][place.rank])
    assert found == pytest.approx(chances(SHARES, max_depth)[:max_nodes])


def test_a_tree_is_a_valid_draft_without_twins() -> None:
    places = static_tree(SHARES, 3, 20)
    draft = Draft(tuple(place.rank for place in places), tuple(place.parent for place in places))
    assert draft.depths == [place.depth for place in places]
    siblings = [(place.parent, place.rank) for place in places]
    assert len(set(siblings)) == len(siblings)
    assert widths(places) == [max(p.rank for p in places if p.depth == depth) + 1 for depth in (1, 2, 3)]


def test_guesses_that_were_never_right_are_left_out() -> None:
    places = static_tree(((0.5, 0.0), (0.0, 0.0)), 2, 10)
    assert [(place.depth, place.rank) for place in places] == [(1, 0)]
    assert static_tree((), 3, 10) == ()
