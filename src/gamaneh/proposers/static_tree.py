"""Trees of guesses whose form is decided before anything is guessed (Cai et al. 2024, 2401.10774, section 2.3.3)."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from gamaneh.core import ROOT

Shares = tuple[tuple[float, ...], ...]
"""For each depth, the measured shares of tokens that were the first, second, ... guess."""


class Place(NamedTuple):
    """A node of a tree of guesses.

    Args:
        parent: index of its parent, which comes before it; `ROOT` for the first candidates.
        depth: 1 for the first candidates.
        rank: which guess for its depth it is, 0 for the best.
    """

    parent: int
    depth: int
    rank: int


@lru_cache(maxsize=256)
def static_tree(shares: Shares, max_depth: int, max_nodes: int) -> tuple[Place, ...]:
    """The tree of at most `max_nodes` nodes of which most are expected to be accepted.

    A node is accepted if all guesses on its path are right; their shares are multiplied, as if they were
    independent. As the product falls along a path and from guess to guess, the nodes are found best first.
    """
    levels = shares[:max_depth]
    places: list[Place] = []
    reachable = [*_child(levels, 1.0, ROOT, 1)]
    while reachable and len(places) < max_nodes:
        lost, place = heapq.heappop(reachable)
        for entry in (*_child(levels, -lost, len(places), place.depth + 1), *_sibling(levels, -lost, place)):
            heapq.heappush(reachable, entry)
        places.append(place)
    return tuple(places)


def widths(places: tuple[Place, ...]) -> list[int]:
    """For each depth, how many guesses the tree uses."""
    counts = [0] * max((place.depth for place in places), default=0)
    for place in places:
        counts[place.depth - 1] = max(counts[place.depth - 1], place.rank + 1)
    return counts


_Entry = tuple[float, Place]
"""The chance of a node, negative, so that the best comes first."""


def _child(levels: Shares, chance: float, node: int, depth: int) -> Iterator[_Entry]:
    """The best guess below a node, if there can be one."""
    if depth <= len(levels) and levels[depth - 1] and levels[depth - 1][0] > 0.0:
        yield -chance * levels[depth - 1][0], Place(node, depth, 0)


def _sibling(levels: Shares, chance: float, place: Place) -> Iterator[_Entry]:
    """The next guess beside a node, if there can be one."""
    shares = levels[place.depth - 1][place.rank : place.rank + 2]
    if len(shares) == 2 and shares[1] > 0.0:
        yield -chance * shares[1] / shares[0], Place(place.parent, place.depth, place.rank + 1)
