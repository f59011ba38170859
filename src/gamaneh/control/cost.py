"""What a step costs, measured: seconds of a verify by rows, batch and context, of a draft by depth, batch and lag.

Verifies are modelled as

    seconds = drift * curve(size) + batch_cost * (batch - 1) + token_cost * tokens

The curve holds medians by size, from measurements at start-up and later. The three coefficients are
fitted to the steps as they come: old steps fade, and what lies far off counts little (Huber 1964), since
on a shared machine a step now and then takes many times its due.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from gamaneh.control.draft_cost import ANCHOR_WEIGHT, NEXT_TO_NOTHING, DraftCost, trust

WINDOW = 33
"""Measurements of one size whose median counts. Long beside `FADE`: when the whole machine slows down, the drift
has to follow before the one size that is measured does, so that the others are scaled as well."""

FADE = 0.9
"""Weight of an old step after one more step; half of it is gone after 7."""

TOKENS_UNIT = 1024
SHOWN_DEPTHS = (1, 2, 4, 8)

RIDGE = np.array([0.5, 2.0, 2.0])
"""Steps for which the assumption counts that nothing but the curve matters."""


class CostCurve:
    """Median seconds by size, with straight lines between measured sizes."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._windows: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def observe(self, size: int, seconds: float) -> None:
        """Fold one measurement into the median of its size."""
        if size not in self._windows:
            insort(self._sizes, size)
            self._windows[size] = deque(maxlen=WINDOW)
        self._windows[size].append(seconds)
        self._medians[size] = median(self._windows[size])

    def points(self) -> dict[int, float]:
        """Median seconds of each measured size."""
        return {size: self._medians[size] for size in self._sizes}

    def seconds(self, size: int) -> float:
        """Expected seconds; beyond the measured sizes the last slope goes on.

        Raises:
            ValueError: nothing was measured.
        """
        if size in self._medians:
            return self._medians[size]
        if not self._sizes:
            raise ValueError("no measurement yet")
        at = bisect_left(self._sizes, size)
        if at == 0:
            return self._medians[self._sizes[0]]
        if len(self._sizes) == 1:
            return self._medians[self._sizes[0]]
        return self._on_line(size, min(at, len(self._sizes) - 1))

    def _on_line(self, size: int, upper: int) -> float:
        low, high = self._sizes[upper - 1], self._sizes[upper]
        slope = (self._medians[high] - self._medians[low]) / (high - low)
        return self._medians[low] + max(slope, 0.0) * (size - low)


@dataclass(slots=True)
class Coefficients:
    """The linear part of the model: a ridge regression whose data fade, solved when it is asked for.

    Everything is relative to the curve, so that long and short steps count alike.
    """

    gram: np.ndarray = field(default_factory=lambda: np.zeros((3, 3)))
    moment: np.ndarray = field(default_factory=lambda: np.zeros(3))
    solved: tuple[float, float, float] | None = (1.0, 0.0, 0.0)

    def observe(self, features: tuple[float, float, float], ratio: float) -> None:
        """One step whose seconds were `ratio` times the curve's."""
        row = np.array(features)
        deviation = abs(ratio - float(row @ np.array(self.values())))
        weight = trust(deviation)
        self.gram = self.gram * FADE + weight * row[:, None] * row
        self.moment = self.moment * FADE + weight * ratio * row
        self.solved = None

    def values(self) -> tuple[float, float, float]:
        """Drift, batch cost and token cost; costs are not negative."""
        if self.solved is None:
            prior = np.array([1.0, 0.0, 0.0])
            drift, batch, tokens = np.linalg.solve(self.gram + np.diag(RIDGE), self.moment + RIDGE * prior)
            self.solved = (max(float(drift), 0.05), max(float(batch), 0.0), max(float(tokens), 0.0))
        return self.solved


class StepCost:
    """Seconds of a verify."""

    def __init__(self) -> None:
        self.curve = CostCurve()
        self.coefficients = Coefficients()

    def __bool__(self) -> bool:
        return bool(self.curve)

    def anchor(self, size: int, seconds: float) -> None:
        """A measurement from start-up, of one request without context."""
        for _ in range(ANCHOR_WEIGHT):
            self.curve.observe(size, seconds)

    def observe(self, size: int, seconds: float, batch: int = 1, tokens: float = 0) -> None:
        """A step of `batch` requests and `tokens` tokens of context took `seconds`."""
        seconds = max(seconds, NEXT_TO_NOTHING)
        if self.curve:
            base = self.curve.seconds(size)
            self.coefficients.observe(_features(base, self._unit(), batch, tokens), seconds / base)
        drift = self.coefficients.values()[0]
        self.curve.observe(size, max(seconds - self._extra(batch, tokens), seconds / 10) / drift)

    def seconds(self, size: int, batch: int = 1, tokens: float = 0) -> float:
        """Expected seconds.

        Raises:
            ValueError: nothing was measured.
        """
        return self.coefficients.values()[0] * self.curve.seconds(size) + self._extra(batch, tokens)

    def _extra(self, batch: int, tokens: float) -> float:
        if not self.curve:
            return 0.0
        _, batch_cost, token_cost = self.coefficients.values()
        return self._unit() * (batch_cost * (batch - 1) + token_cost * tokens / TOKENS_UNIT)

    def _unit(self) -> float:
        """Seconds of the smallest size: what additional costs are counted in."""
        return self.curve.seconds(0)


def _features(base: float, unit: float, batch: int, tokens: float) -> tuple[float, float, float]:
    scale = unit / base
    return 1.0, (batch - 1) * scale, tokens / TOKENS_UNIT * scale


class CostModel:
    """Seconds of a round's verify, and of its drafts by proposer.

    Drafts are kept in plain steps of one request. Those are measured in every round, drafts only while they
    are made: a proposer that is left out since the machine was slow gets quicker again with the machine.

    `bucket` maps a number of rows to the number that is really computed, padding included, so
    that equal work is measured as one.
    """

    def __init__(self, bucket: Callable[[int], int] = lambda rows: rows) -> None:
        self.bucket = bucket
        self.verify = StepCost()
        self._drafts: dict[str, DraftCost] = {}

    def knows(self, proposer: str) -> bool:
        """Whether a draft of this proposer was ever timed."""
        return proposer in self._drafts

    def anchor_verify(self, rows: int, seconds: float) -> None:
        self.verify.anchor(self.bucket(rows), seconds)

    def anchor_draft(self, proposer: str, depth: int, seconds: float) -> None:
        self._draft(proposer).anchor(depth, seconds / self._plain_step())

    def observe_verify(self, rows: int, seconds: float, *, batch: int = 1, context: int = 0) -> None:
        """A step without its drafts: `rows` token rows of `batch` requests, `context` tokens in all of them."""
        self.verify.observe(self.bucket(rows), seconds, batch, context)

    def observe_draft(self, proposer: str, depth: int, seconds: float, *, batch: int = 1, lag: float = 0) -> None:
        """Drafts for `batch` requests, of which the proposer had not read `lag` tokens."""
        if depth > 0:
            self._draft(proposer).observe(depth, seconds / self._plain_step(), batch, lag)

    def verify_seconds(self, rows: int, *, batch: int = 1, context: int = 0) -> float:
        """Expected seconds of a step without its drafts; 1 before anything was measured."""
        return self.verify.seconds(self.bucket(rows), batch, context) if self.verify else 1.0

    def draft_seconds(self, proposer: str, depth: int, *, batch: int = 1, lag: float = 0) -> float:
        """Expected seconds of a proposer's drafts; 0 before anything was measured."""
        cost = self._drafts.get(proposer)
        return cost.value(depth, batch, lag) * self._plain_step() if cost is not None and depth > 0 else 0.0

    def draft_points(self) -> Mapping[str, dict[int, float]]:
        """Expected seconds by proposer, for some draft lengths."""
        return {name: {depth: self.draft_seconds(name, depth) for depth in SHOWN_DEPTHS} for name in self._drafts}

    def _plain_step(self) -> float:
        """Expected seconds of a plain step of one request; 1 before anything was measured."""
        return self.verify_seconds(1)

    def _draft(self, proposer: str) -> DraftCost:
        return self._drafts.setdefault(proposer, DraftCost())
