"""What rounds cost, from repeated measurements: seconds by requests in the batch and rows or depth of the drafts."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import numpy as np

from gamaneh.control.cost import CostModel
from gamaneh.control.objective import AskedProposer, round_seconds

DRAFTER = "drafter"
"""Name of the one proposer in a cost model of these measurements."""

Cell = tuple[int, int]
"""Requests in the batch, and what else the seconds depend on: rows of drafts, or their depth."""


class Surface:
    """Seconds of some cells, with straight lines between them.

    Beyond the measured sizes of a batch the last slope goes on; beyond the measured batches too.

    Args:
        cells: repeated measurements of each cell, in seconds; the median counts.

    Raises:
        ValueError: there is no cell, or none of its measurements.
    """

    def __init__(self, cells: Mapping[Cell, Sequence[float]]) -> None:
        if not cells or not all(cells.values()):
            raise ValueError(f"cells must be at least one, each with a measurement, got {dict(cells)}")
        self.cells = {cell: tuple(values) for cell, values in sorted(cells.items())}
        self._lines: dict[int, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
        for (batch, size), values in self.cells.items():
            sizes, seconds = self._lines[batch]
            sizes.append(size)
            seconds.append(median(values))
        self._batches = [float(batch) for batch in self._lines]
        self._known: dict[Cell, float] = {}

    def seconds(self, batch: int, size: int) -> float:
        """Expected seconds."""
        if (batch, size) not in self._known:
            of_batches = [_interpolated(*self._lines[int(known)], size) for known in self._batches]
            self._known[batch, size] = _interpolated(self._batches, of_batches, batch)
        return self._known[batch, size]

    def resampled(self, draws: np.random.Generator) -> Surface:
        """The same from measurements drawn again with replacement (Efron 1979).

        Cells that were measured equally often, in turns, draw the same turns: what slowed one of them
        down slowed the others down, and their ratios keep that.
        """
        turns = draws.random(max(map(len, self.cells.values())))
        return Surface({cell: _again(values, turns) for cell, values in self.cells.items()})


@dataclass(frozen=True)
class Costs:
    """What the rounds of one proposer cost.

    Args:
        step: of a round without its drafts, by requests and rows of drafts.
        draft: of the drafts, by requests and depth of the longest; None for plain decoding.
        reading: seconds for each token of a prompt that the proposer reads before its first draft.
    """

    step: Surface
    draft: Surface | None = None
    reading: float = 0.0

    @property
    def plain(self) -> Costs:
        """The same without drafts."""
        return Costs(self.step)

    def round_seconds(self, batch: int, rows: int, depth: int) -> float:
        """Seconds of a round of `batch` requests with `rows` candidates in all, the longest draft `depth` deep.

        By the controller's own objective: what is advised is what the engine reckons with.
        """
        return round_seconds(self.model, batch, batch + rows, [AskedProposer(DRAFTER, depth, batch)] if depth else ())

    @cached_property
    def model(self) -> CostModel:
        """The measurements as the controller's cost model."""
        model = CostModel()
        for (batch, rows), seconds in self.step.cells.items():
            model.anchor_verify(batch + rows, median(seconds), batch=batch)
        for (batch, depth), seconds in () if self.draft is None else self.draft.cells.items():
            if depth:
                model.anchor_draft(DRAFTER, depth, median(seconds), batch=batch)
        return model

    def resampled(self, draws: np.random.Generator) -> Costs:
        """From measurements drawn again with replacement."""
        draft = None if self.draft is None else self.draft.resampled(draws)
        return Costs(self.step.resampled(draws), draft, self.reading)


def _interpolated(sizes: Sequence[float], seconds: Sequence[float], size: float) -> float:
    """On straight lines through the points; before the first point it stays, behind the last the slope goes on."""
    at = bisect_left(sizes, size)
    if at == 0 or len(sizes) == 1:
        return seconds[0]
    upper = min(at, len(sizes) - 1)
    slope = (seconds[upper] - seconds[upper - 1]) / (sizes[upper] - sizes[upper - 1])
    if at == len(sizes):
        return seconds[-1] + max(slope, 0.0) * (size - sizes[-1])
    return seconds[upper - 1] + slope * (size - sizes[upper - 1])


def _again(values: Sequence[float], turns: np.ndarray) -> list[float]:
    return [values[int(turn * len(values))] for turn in turns[: len(values)]]
