"""When requests arrive: seconds after the start, ascending. Seeded, so that both sides get the same."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gamaneh.bench.result import Load
from gamaneh.errors import InvalidOption


def offsets(load: Load, seed: int, recorded: Sequence[float] = ()) -> list[float]:
    """Arrivals of an open load; the first request comes at 0.

    `constant` leaves 1 / rate between two, `poisson` draws the gaps from an exponential distribution
    with that mean, and `gamma` from a gamma distribution with that mean and shape `burstiness`: 1
    is Poisson, less is burstier.

    Args:
        recorded: of `replay`: seconds at which the requests were recorded, in their order.

    Raises:
        InvalidOption: `load` is a closed loop, or the recording does not fit.
    """
    if load.pattern == "closed":
        raise InvalidOption("pattern", "must be one whose requests arrive by the clock", load.pattern)
    if load.pattern == "replay":
        return _replayed(load, recorded)
    gaps = _gaps(load, np.random.default_rng(seed)) / load.level
    return [0.0, *np.cumsum(gaps[:-1]).tolist()]


def _gaps(load: Load, noise: np.random.Generator) -> np.ndarray:
    """Gaps `[requests]` with mean 1."""
    if load.pattern == "constant":
        return np.ones(load.requests)
    shape = load.burstiness if load.pattern == "gamma" else 1.0
    return noise.gamma(shape, 1.0 / shape, load.requests)


def _replayed(load: Load, recorded: Sequence[float]) -> list[float]:
    if len(recorded) != load.requests or list(recorded) != sorted(recorded):
        raise InvalidOption("trace", "must hold one ascending time for each request", len(recorded))
    return [at - recorded[0] for at in recorded]


def recorded_rate(recorded: Sequence[float]) -> float:
    """Requests per second of a recording: gaps / seconds between first and last; 0 when all came at once."""
    span = recorded[-1] - recorded[0]
    return (len(recorded) - 1) / span if span > 0 else 0.0
