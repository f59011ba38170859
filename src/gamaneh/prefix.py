"""How far two sequences are the same."""

from __future__ import annotations

from collections.abc import Sequence


def common_prefix(first: Sequence[object], second: Sequence[object], known: int = 0) -> int:
    """Length of the common prefix of two texts or token sequences, of which the first `known` need not be compared."""
    shortest = min(len(first), len(second))
    return next((at for at in range(known, shortest) if first[at] != second[at]), shortest)
