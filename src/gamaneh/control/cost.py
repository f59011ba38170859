"""What a step costs, measured: seconds of a verify by rows, seconds of a draft by depth."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

SMOOTHING = 0.1
"""Share of a new measurement in the running mean."""


class CostCurve:
    """Running mean of seconds by size, with straight lines between measured sizes."""

    def __init__(self) -> None:
        self._sizes: list[int] = []
        self._seconds: list[float] = []

    def __bool__(self) -> bool:
        return bool(self._sizes)

    def observe(self, size: int, seconds: float) -> None:
        """Fold one measurement into the running mean of its size."""
        at = bisect_left(self._sizes, size)
        if at < len(self._sizes) and self._sizes[at] == size:
            self._seconds[at] += SMOOTHING * (seconds - self._seconds[at])
        else:
            self._sizes.insert(at, size)
            self._seconds.insert(at, seconds)

    def seconds(self, size: int) -> float:
        """Expected seconds; beyond the measured sizes the last slope goes on.

        Raises:
            ValueError: nothing was measured.
        """
        if not self._sizes:
            raise ValueError("no measurement yet")
        at = bisect_left(self._sizes, size)
        if at < len(self._sizes) and self._sizes[at] == size:
            return self._seconds[at]
        if len(self._sizes) == 1 or at == 0:
            return self._seconds[0]
        low = min(at, len(self._sizes) - 1) - 1
        width = self._sizes[low + 1] - self._sizes[low]
        slope = max((self._seconds[low + 1] - self._seconds[low]) / width, 0.0)
        return self._seconds[low] + slope * (size - self._sizes[low])


class CostModel:
    """Verify seconds by rows of the batch, and draft seconds by proposer and depth.

    `bucket` maps a number of rows to the number that is really computed, padding included, so
    that equal work is measured as one.
    """

    def __init__(self, bucket: Callable[[int], int] = lambda rows: rows) -> None:
        self.bucket = bucket
        self.verify = CostCurve()
        self._draft: dict[str, CostCurve] = {}

    def observe_verify(self, rows: int, seconds: float) -> None:
        self.verify.observe(self.bucket(rows), seconds)

    def observe_draft(self, proposer: str, depth: int, seconds: float) -> None:
        if depth > 0:
            self._draft.setdefault(proposer, CostCurve()).observe(depth, seconds)

    def round_seconds(self, rows: int, depths: dict[str, int]) -> float:
        """Expected seconds of a round with `rows` rows and this draft depth per proposer."""
        draft = sum(self._draft_seconds(name, depth) for name, depth in depths.items())
        return (self.verify.seconds(self.bucket(rows)) if self.verify else 1.0) + draft

    def _draft_seconds(self, proposer: str, depth: int) -> float:
        curve = self._draft.get(proposer)
        return curve.seconds(depth) if curve and depth else 0.0
