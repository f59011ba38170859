"""From values to places: axes with round ticks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

MOST_TICKS = 6

LEAST_GAP = 0.14
"""From one label of a ratio's axis to the next, as a share of the axis."""

_STEPS = (1, 2, 2.5, 5, 10)
_ROOM = 1.06
"""Room that a ratio's axis leaves beyond its values."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from `low` to `high`, spread evenly or by their logarithm.

    Args:
        ticks: values that are written.
        show: a value as text.
        title: what the values are.
        log: equal ratios are equally far apart.
    """

    low: float
    high: float
    ticks: Sequence[float]
    show: Callable[[float], str]
    title: str = ""
    log: bool = False

    def place(self, value: float, start: float, end: float) -> float:
        """Where `value` stands between `start` (low) and `end` (high); not outside of them."""
        low, high, at = (math.log(part) if self.log else part for part in (self.low, self.high, value))
        share = (at - low) / (high - low)
        return start + (end - start) * min(max(share, 0.0), 1.0)


def amount_axis(values: Iterable[float], show: Callable[[float], str], title: str = "") -> Axis:
    """From 0 to a round number at or above the largest value."""
    largest = max(values, default=0.0)
    step = _round_step(largest if largest > 0 else 1.0)
    count = max(math.ceil(largest / step - 1e-9), 1)
    return Axis(0.0, step * count, [step * at for at in range(count + 1)], show, title)


def share_axis(show: Callable[[float], str], title: str = "") -> Axis:
    """From 0 to 1."""
    return Axis(0.0, 1.0, [0.0, 0.25, 0.5, 0.75, 1.0], show, title)


def ratio_axis(values: Iterable[float], show: Callable[[float], str], title: str = "") -> Axis:
    """Positive ratios by their logarithm; 1 is always on the axis."""
    known = [1.0, *values]
    low, high = min(min(known), 0.95) / _ROOM, max(max(known), 1.05) * _ROOM
    return Axis(low, high, _ratio_ticks(low, high), show, title, log=True)


def level_axis(levels: Iterable[float], show: Callable[[float], str], title: str = "") -> Axis:
    """Levels that were measured, by their logarithm, each with a tick."""
    known = sorted(set(levels))
    if len(known) == 1:
        return Axis(known[0] / 2, known[0] * 2, known, show, title, log=True)
    return Axis(known[0] / 1.1, known[-1] * 1.1, known, show, title, log=True)


def place_axis(count: int, show: Callable[[float], str], title: str = "") -> Axis:
    """Places 1 to `count`, with room at both ends."""
    step = -(-count // 10)
    return Axis(0.6, count + 0.4, [float(at) for at in range(1, count + 1, step)], show, title)


def _round_step(largest: float) -> float:
    """A round number that `largest` holds at most MOST_TICKS - 1 times, rounded up."""
    rough = largest / (MOST_TICKS - 1)
    unit = 10.0 ** math.floor(math.log10(rough))
    return unit * next(step for step in _STEPS if step * unit >= rough * (1 - 1e-9))


_RATIO_STEPS = (0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)


def _ratio_ticks(low: float, high: float) -> list[float]:
    """Multiples of the finest round step whose labels have room; below 1 and above by the same step."""
    for step in _RATIO_STEPS:
        ticks = sorted({1.0, *(step * at for at in range(math.ceil(low / step), math.floor(high / step) + 1))})
        if _have_room(ticks, math.log(high / low)):
            return ticks
    return [1.0]


def _have_room(ticks: Sequence[float], length: float) -> bool:
    """Whether neighbours are far enough apart on an axis of this length, in a wide font on a phone too."""
    return all(math.log(after / before) >= LEAST_GAP * length for before, after in pairwise(ticks))
