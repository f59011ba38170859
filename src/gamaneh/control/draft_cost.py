"""What one proposer's drafts take: a line in the draft length, and a price for each token that it has to read first."""

from __future__ import annotations

from collections import deque
from statistics import median

import numpy as np

FADE = 0.95
"""Weight of an old draft after one more; half of it is gone after 14."""

TOLERANCE = 0.5
"""Relative deviation from which on a measurement pulls with constant force, however far off it lies: an outlier."""

ANCHOR_WEIGHT = 3
"""Measurements for which one from start-up stands, itself a median."""

SHRINKAGE = 0.02
"""How strongly it is assumed, beside the drafts, that nothing but the draft length matters."""

READING_WINDOW = 9
"""Measurements of reading whose median counts: there is one per request at most."""

MUCH_TO_READ = 32
"""Tokens of each request from which on a draft shows what reading costs. What comes between two rounds is less."""

NEXT_TO_NOTHING = 1e-9
"""Least time that anything is taken to last, as ratios are formed."""


def trust(deviation: float) -> float:
    """Weight of a measurement that lies off by `deviation` of what was expected (Huber 1964)."""
    return min(1.0, TOLERANCE / deviation) if deviation > 0 else 1.0


class DraftCost:
    """What drafts take, by depth, batch and tokens to be read, in the caller's unit.

    A draft that has much to read says what reading costs and next to nothing about drafting, so the two
    are measured apart.
    """

    def __init__(self) -> None:
        self._line = DraftLine()
        self._reading: deque[float] = deque(maxlen=READING_WINDOW)

    def anchor(self, depth: int, taken: float) -> None:
        """A measurement from start-up, of one request with nothing to read."""
        for _ in range(ANCHOR_WEIGHT):
            self._line.observe(depth, 1, taken)

    def observe(self, depth: int, taken: float, batch: int, lag: float) -> None:
        """Drafts for `batch` requests, of which `lag` tokens had to be read first."""
        if lag < MUCH_TO_READ * batch:
            self._line.observe(depth, batch, taken)
            return
        drafting = self._line.value(depth, batch) if self._line else taken * depth / (depth + lag)
        self._reading.append(max(taken - drafting, 0.0) / lag)

    def value(self, depth: int, batch: int, lag: float) -> float:
        """Expected cost. Before the first draft without much to read, one candidate counts as one token read."""
        reading = median(self._reading) if self._reading else 0.0
        drafting = self._line.value(depth, batch) if self._line else reading * depth
        return drafting + reading * lag


class DraftLine:
    """`fixed + level * depth + row * depth * (batch - 1)`, fitted to the drafts as they come.

    Weighted least squares of relative errors: old drafts fade, and what lies far off counts little (Huber
    1964). A line, and not a curve by depth: drafts of lengths that are seldom made would otherwise keep what
    they cost once, beside others that are measured all the time.
    """

    def __init__(self) -> None:
        self._gram = np.zeros((3, 3))
        self._moment = np.zeros(3)
        self._solved: np.ndarray | None = None

    def __bool__(self) -> bool:
        return bool(self._gram[0, 0] > 0)

    def observe(self, depth: int, batch: int, taken: float) -> None:
        """Drafts of this depth for `batch` requests took so much."""
        row, taken = _features(depth, batch), max(taken, NEXT_TO_NOTHING)
        expected = max(float(row @ self._coefficients()), NEXT_TO_NOTHING) if self else taken
        scale = max(expected, taken)
        deviation = abs(taken - expected) / expected
        weight = trust(deviation) / scale**2
        self._gram = self._gram * FADE + weight * row[:, None] * row
        self._moment = self._moment * FADE + weight * taken * row
        self._solved = None

    def value(self, depth: int, batch: int) -> float:
        """Expected cost; 0 before anything was measured."""
        return float(_features(depth, batch) @ self._coefficients()) if self else 0.0

    def _coefficients(self) -> np.ndarray:
        if self._solved is None:
            self._solved = self._solve()
        return self._solved

    def _solve(self) -> np.ndarray:
        """Coefficients that are not negative; one that would be is left out, the fixed part first."""
        kept = [0, 1, 2]
        while True:
            coefficients = np.zeros(3)
            gram = self._gram + np.diag(SHRINKAGE * self._gram[[0, 1, 1], [0, 1, 1]] * [1, 0, 1])
            coefficients[kept] = np.linalg.solve(gram[np.ix_(kept, kept)], self._moment[kept])
            negative = [at for at in kept if coefficients[at] < 0]
            if not negative:
                return coefficients
            kept.remove(negative[0])


def _features(depth: int, batch: int) -> np.ndarray:
    return np.array([1.0, depth, depth * (batch - 1.0)])
