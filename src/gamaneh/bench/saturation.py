"""Do requests arrive faster than they are served? Then latencies say how long the run was, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST_GROWTH = 0.1
"""Share of the arriving requests that pile up, from which on a server counts as saturated."""

LEAST_REQUESTS = 10
"""Fewer do not show a trend."""


@dataclass(frozen=True, slots=True)
class Stay:
    """When one request arrived and left, in seconds of one clock."""

    arrived: float
    left: float


def growth(stays: Sequence[Stay]) -> float:
    """Requests that pile up per second while requests arrive: slope of a straight line through their number.

    The number is taken at each arrival in the second half of the arrivals, the newcomer left out: at
    the start any server fills up.
    """
    arrivals = sorted(stay.arrived for stay in stays)
    late = np.array(arrivals[len(arrivals) // 2 :])
    if len(stays) < LEAST_REQUESTS or late[-1] <= late[0]:
        return 0.0
    under_way = [sum(stay.arrived < at < stay.left for stay in stays) for at in late]
    return float(np.polyfit(late - late[0], under_way, 1)[0])


def is_saturated(stays: Sequence[Stay]) -> bool:
    """Whether more than a tenth of the arriving requests pile up instead of leaving."""
    arrivals = [stay.arrived for stay in stays]
    span = max(arrivals) - min(arrivals)
    return span > 0 and growth(stays) > LEAST_GROWTH * (len(stays) - 1) / span
