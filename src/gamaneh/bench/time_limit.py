"""How long a whole run may take, from loading the model to the answer."""

from __future__ import annotations

import time
from collections.abc import Callable

MINUTES = 5.0
"""Of `bench`, `compare`, `audit` and `advise`, unless more is asked for."""

INTERRUPTED = "interrupted"
OUT_OF_TIME = "out of time"
"""Why a run stopped before its end."""


def broke_off(stopped: str | None) -> bool:
    """Whether a run stopped before its end for another reason than the time, which ends runs as a rule."""
    return stopped not in (None, OUT_OF_TIME)


class TimeLimit:
    """Counts from the moment at which it is made.

    Args:
        minutes: 0 sets no limit.
        clock: returns seconds.
    """

    def __init__(self, minutes: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = minutes * 60.0, clock
        self._started = clock()

    @property
    def left(self) -> float:
        """Seconds that are left, infinite without a limit."""
        if not self._seconds:
            return float("inf")
        return max(self._started + self._seconds - self._clock(), 0.0)

    @property
    def over(self) -> bool:
        """Whether the time is up."""
        return self.left <= 0.0

    def share(self, part: float) -> TimeLimit:
        """Return a limit that begins now and holds this part of what is left."""
        return TimeLimit(0.0 if not self._seconds else max(self.left * part, 1e-9) / 60.0, self._clock)
