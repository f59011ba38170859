"""Survival of drafts, estimated from what was accepted, and how sure the estimate is.

The chance that a candidate is accepted once it is reached is estimated by position, from the general to the
particular, each drawn towards the one before: a prior, or what was measured beforehand, the proposer's grades
from the lowest to the one in question, the kind of request, the request.
Old drafts fade, faster for a single request, whose text changes, than for a pool.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

POOL_FADE = 0.98
"""Weight of an old draft in a pool after one more; half of it is gone after 34."""

REQUEST_FADE = 0.95
"""The same for one request, per round, also where it did not draft; half is gone after 14."""

LEAST_FADE = 0.3
"""However long ago the last draft was, that much of it stays."""

PRIOR_RATE = 0.5
PRIOR_WEIGHT = 2.0
"""A uniform Beta prior for the first position; later ones are drawn towards the one before."""

NEIGHBOUR_WEIGHT = 8.0
"""Drafts for which the position before counts: what is accepted at one is much like what is accepted at the next, and
positions that are seldom reached would otherwise be judged by a draft or two."""

POOL_WEIGHT = 8.0
"""Drafts for which a pool counts beside those of the kind or the request."""

CAUTION = 0.5
"""Standard deviations between the estimate and its lower bound, which so holds in about seven of ten cases. Twice as
much kept good drafters off in simulations, and made nothing safer."""

EXPECTED_WEIGHT = 8.0
"""Drafts for which a measurement on texts held out counts: the texts of a service are others."""

LEAST_RATE = 0.01
"""Chance of a position that never survived where it was measured: nothing is impossible on other texts."""

NEGLIGIBLE = 0.01
"""Candidates that survive less often are not worth thinking about."""


@dataclass(frozen=True, slots=True)
class Source:
    """What is learned about together: a proposer's drafts of one grade."""

    proposer: str
    grade: int = 0


@dataclass(slots=True)
class PositionCounts:
    """Faded counts by position: how often it was reached and how often it was accepted."""

    reached: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)

    def add(self, depth: int, accepted: int, fade: float) -> None:
        """One draft of `depth` candidates of which the first `accepted` were kept.

        Positions behind the first refusal were never reached and say nothing.
        """
        missing = depth - len(self.reached)
        self.reached += [0.0] * missing
        self.accepted += [0.0] * missing
        for position in range(min(accepted + 1, depth)):
            self.reached[position] = self.reached[position] * fade + 1.0
            self.accepted[position] = self.accepted[position] * fade + (position < accepted)

    def rate(self, position: int, prior: float, weight: float) -> tuple[float, float]:
        """Chance that the position is accepted once reached, drawn towards `prior`, and the drafts behind it."""
        if position >= len(self.reached):
            return prior, weight
        total = self.reached[position] + weight
        return (self.accepted[position] + prior * weight) / total, total


_NOTHING = PositionCounts()


class AcceptanceTracker:
    """Counts by source, by source and kind of request, and by source and request."""

    def __init__(self) -> None:
        self._sources: dict[Source, PositionCounts] = {}
        self._kinds: dict[tuple[Source, str], PositionCounts] = {}
        self._requests: dict[str, dict[Source, PositionCounts]] = {}
        self._expected: dict[str, Sequence[float]] = {}

    def expect(self, proposer: str, survival: Sequence[float]) -> None:
        """Begin with this s_1, s_2, ... of a proposer's drafts, which was measured elsewhere."""
        alive = (1.0, *survival)
        rates = (after / before if before else 0.0 for before, after in pairwise(alive))
        self._expected[proposer] = [min(max(rate, LEAST_RATE), 1.0) for rate in rates]

    def observe(
        self, source: Source, request_id: str, depth: int, accepted: int, *, kind: str = "", gap: int = 0
    ) -> None:
        """Count one draft; empty drafts say nothing. `gap` plain rounds went before it."""
        if depth == 0:
            return
        own = self._requests.setdefault(request_id, {}).setdefault(source, PositionCounts())
        own.add(depth, accepted, max(REQUEST_FADE ** (1 + gap), LEAST_FADE))
        for pool in (
            self._sources.setdefault(source, PositionCounts()),
            self._kinds.setdefault((source, kind), PositionCounts()),
        ):
            pool.add(depth, accepted, POOL_FADE)

    def survival(
        self, source: Source, request_id: str, depth: int, *, kind: str = "", caution: float = 0.0
    ) -> list[float]:
        """Estimated s_1 .. s_depth: the chance that the first i candidates are all accepted.

        With `caution`, the lower bound that many standard deviations below; with a negative one, an upper
        bound. The errors of the positions' rates are those of Beta posteriors, and add up on the logarithmic
        scale (delta method). Positions whose survival is negligible are left out.
        """
        levels = self._levels(source, request_id, kind)
        survival: list[float] = []
        log_alive, log_variance, prior = 0.0, 0.0, PRIOR_RATE
        for position in range(depth):
            rate, count, prior = levels.rate(position, prior)
            log_alive += math.log(rate)
            log_variance += (1.0 - rate) / (rate * (count + 1.0))
            survival.append(min(math.exp(log_alive - caution * math.sqrt(log_variance)), 1.0))
            if survival[-1] < NEGLIGIBLE:
                break
        return survival

    def grades(self, proposer: str) -> list[int]:
        """Grades of this proposer's drafts that were seen."""
        return [source.grade for source in self._sources if source.proposer == proposer]

    def drop(self, request_id: str) -> None:
        """Forget a finished request; the pools keep what it taught."""
        self._requests.pop(request_id, None)

    def _levels(self, source: Source, request_id: str, kind: str) -> _Levels:
        lower = (Source(source.proposer, grade) for grade in range(source.grade + 1))
        return _Levels(
            self._expected.get(source.proposer, ()),
            [self._sources[pool] for pool in lower if pool in self._sources],
            self._kinds.get((source, kind), _NOTHING),
            self._requests.get(request_id, {}).get(source, _NOTHING),
        )


@dataclass(frozen=True, slots=True)
class _Levels:
    """From the general to the particular: expected rates, counts of pools up to the grade, of kind and request."""

    expected: Sequence[float]
    pools: Sequence[PositionCounts]
    kind: PositionCounts
    own: PositionCounts

    def rate(self, position: int, prior: float) -> tuple[float, float, float]:
        """Rate of a position and the drafts behind it; and the general rate, for the next position."""
        weight = NEIGHBOUR_WEIGHT if position else PRIOR_WEIGHT
        if position < len(self.expected):
            prior, weight = self.expected[position], EXPECTED_WEIGHT
        general, count = prior, weight
        for pool in self.pools:
            general, count = pool.rate(position, general, min(count, weight))
        rate, count = self.kind.rate(position, general, min(count, POOL_WEIGHT))
        rate, count = self.own.rate(position, rate, min(count, POOL_WEIGHT))
        return rate, count, general
