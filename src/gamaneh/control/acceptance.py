"""Survival of drafts, estimated per request and position from what was accepted."""

from __future__ import annotations

from dataclasses import dataclass, field

DECAY = 0.98
"""Weight of an old round after one more round; half of it is gone after 34."""

PRIOR_RATE = 0.7
PRIOR_WEIGHT = 2.0
POOL_WEIGHT = 4.0
"""Rounds that the prior and the pool count for beside the measured ones."""


@dataclass(slots=True)
class PositionCounts:
    """Decayed counts by position: how often it was reached and how often it was accepted."""

    reached: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)

    def add(self, depth: int, accepted: int) -> None:
        """One draft of `depth` candidates of which the first `accepted` were kept.

        Positions behind the first refusal were never reached and say nothing.
        """
        self._grow(depth)
        for position in range(min(accepted + 1, depth)):
            self.reached[position] = self.reached[position] * DECAY + 1.0
            self.accepted[position] = self.accepted[position] * DECAY + (position < accepted)

    def rate(self, position: int, prior: float, weight: float) -> float:
        """Chance that the position is accepted once reached, drawn towards `prior`."""
        if position >= len(self.reached):
            return prior
        return (self.accepted[position] + prior * weight) / (self.reached[position] + weight)

    def _grow(self, depth: int) -> None:
        missing = depth - len(self.reached)
        self.reached += [0.0] * missing
        self.accepted += [0.0] * missing


class AcceptanceTracker:
    """Per proposer: one pool over all requests, and each request drawn towards it."""

    def __init__(self) -> None:
        self._pools: dict[str, PositionCounts] = {}
        self._requests: dict[tuple[str, str], PositionCounts] = {}

    def observe(self, proposer: str, request_id: str, depth: int, accepted: int) -> None:
        """Count one draft; empty drafts say nothing."""
        if depth == 0:
            return
        self._pools.setdefault(proposer, PositionCounts()).add(depth, accepted)
        self._requests.setdefault((proposer, request_id), PositionCounts()).add(depth, accepted)

    def survival(self, proposer: str, request_id: str, depth: int) -> list[float]:
        """Estimated s_1 .. s_depth: the chance that the first i candidates are all accepted."""
        pool = self._pools.get(proposer, PositionCounts())
        own = self._requests.get((proposer, request_id), PositionCounts())
        survival, alive, pooled = [], 1.0, PRIOR_RATE
        for position in range(depth):
            pooled = pool.rate(position, pooled, PRIOR_WEIGHT)
            alive *= own.rate(position, pooled, POOL_WEIGHT)
            survival.append(alive)
        return survival

    def drop(self, request_id: str) -> None:
        """Forget a finished request; the pool keeps what it taught."""
        for key in [key for key in self._requests if key[1] == request_id]:
            del self._requests[key]
