"""Survival of drafts, estimated from what was accepted, and how sure the estimate is.

The chance that a candidate is accepted once it is reached is estimated by position, from the general to the
particular, each drawn towards the one before: a prior, or what was measured beforehand, the proposer's grades
from the lowest to the one in question, the kind of request, the request.
Old drafts fade, faster for a single request, whose text changes, than for a pool. Where what becomes of a
request's drafts is unlikely by the estimate, it starts afresh at once (a cumulative sum test, Page 1954).

What is counted goes by the length that was asked for: a proposer that delivers less than that, or nothing, has its
missing candidates counted as refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

POOL_FADE = 0.99
"""Weight of an old draft in a pool after one more; half of it is gone after 69."""

REQUEST_FADE = 0.97
"""The same for one request, per round, also where it did not draft; half is gone after 23."""

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

DOUBTED_WEIGHT = 2.0
"""The same where the request turned out to be another than the pool."""

BAD_NEWS = 0.1
GOOD_NEWS = 0.6
"""What stays of the pools' drafts where a request turns out worse or better than they said. Drafts that are refused at
full length cost most; a good drafter that is underrated is found by every request anew."""

CAUTION = 1.0
"""Standard deviations between the estimate and its bounds, hopeful and doubtful."""

EXPECTED_WEIGHT = 8.0
"""Drafts for which a measurement on texts held out counts: the texts of a service are others."""

REMEMBERED_WEIGHT = 16.0
"""Most drafts for which what an earlier engine learned counts: enough to begin with, and soon outweighed."""

EMPTY_OWN_WEIGHT = 4.0
"""Drafts for which an empty one counts for its own request: as a rule the next one is empty, too."""

EMPTY_WEIGHT = 0.25
"""Share of a draft for which an empty one counts in the pools: as a rule the reason lies in the request alone."""

LEAST_RATE = 0.01
"""Chance of a position that never survived where it was measured: nothing is impossible on other texts."""

NEGLIGIBLE = 0.01
"""Candidates that survive less often are not worth thinking about."""

ALARM = 5.0
"""Logarithm of how much likelier the last drafts have to be by an even chance than by the estimate for it to be
forgotten. Two surprises in a row do, where surprises have a chance of 4 %."""

SUSPICION = 2.0
"""The same for the next draft to be worth more than its price: one candidate accepted that had a chance of 7 %."""

Estimate = tuple[Sequence[float], Sequence[float]]
"""s_1, s_2, ... and the standard deviations of their logarithms."""


class DraftSource(NamedTuple):
    """What is learned about together: a proposer's drafts of one grade."""

    proposer: str
    grade: int = 0


class PositionCounts:
    """Faded counts by position: how often it was reached and how often it was accepted."""

    __slots__ = ("accepted", "reached")

    def __init__(self, reached: Sequence[float] = (), accepted: Sequence[float] = ()) -> None:
        self.reached, self.accepted = list(reached), list(accepted)

    def add(self, length: int, accepted: int, fade: float = 1.0, weight: float = 1.0) -> None:
        """One draft of `length` candidates of which the first `accepted` were kept.

        Positions behind the first refusal were never reached and say nothing; they fade all the same, towards what
        the positions before them say.
        """
        reached, kept = self.reached, self.accepted
        missing = length - len(reached)
        if missing > 0:
            reached.extend([0.0] * missing)
            kept.extend([0.0] * missing)
        if fade < 1.0:
            reached[:] = [each * fade for each in reached]
            kept[:] = [each * fade for each in kept]
        for position in range(min(accepted, length)):
            reached[position] += weight
            kept[position] += weight
        if accepted < length:
            reached[accepted] += weight

    def survival(self) -> tuple[float, ...]:
        """s_1, s_2, ... as counted: the product of the shares accepted once reached."""
        alive, found = 1.0, []
        for reached, accepted in zip(self.reached, self.accepted, strict=True):
            alive *= accepted / reached if reached else 0.0
            found.append(alive)
        return tuple(found)


class RequestCounts(PositionCounts):
    """Those of one request, which begin anew where the request turns out to be another than was thought.

    Attributes:
        pool_weight: drafts for which the pool counts beside these.
    """

    __slots__ = ("_doubt", "_recent", "pool_weight")

    def __init__(self) -> None:
        super().__init__()
        self.pool_weight = POOL_WEIGHT
        self._doubt = 0.0
        self._recent: list[tuple[int, int]] = []

    @property
    def hopeful(self) -> bool:
        """Whether the last draft was accepted although that was unlikely."""
        return self._doubt > SUSPICION and self._recent[-1][1] > 0

    def question(self, rate: float, length: int, accepted: int) -> bool:
        """A draft whose first candidate was thought to be accepted with a chance of `rate`; true to begin anew."""
        chance = min(max(rate if accepted else 1.0 - rate, LEAST_RATE), 1.0)
        self._doubt = max(self._doubt + math.log(0.5 / chance), 0.0)
        if self._doubt == 0.0:
            self._recent.clear()
            return False
        self._recent.append((length, accepted))
        if self._doubt <= ALARM:
            return False
        self.reached, self.accepted, self.pool_weight = [], [], DOUBTED_WEIGHT
        for draft in self._recent[:-1]:
            self.add(*draft)
        self._doubt, self._recent = 0.0, []
        return True


_NOTHING = PositionCounts()


class SurvivalTracker:
    """Counts by source, by source and kind of request, and by source and request.

    Attributes:
        version: another number whenever something was learned.
    """

    def __init__(self) -> None:
        self.version = 0
        self._sources: dict[DraftSource, PositionCounts] = {}
        self._kinds: dict[tuple[DraftSource, str], PositionCounts] = {}
        self._requests: dict[str, dict[DraftSource, RequestCounts]] = {}
        self._expected: dict[str, Sequence[float]] = {}
        self._estimates: dict[str, dict[tuple[int, str, str], tuple[int, Estimate]]] = {}

    def expect(self, proposer: str, survival: Sequence[float]) -> None:
        """Begin with this s_1, s_2, ... of a proposer's drafts, which was measured elsewhere."""
        alive = (1.0, *survival)
        rates = (after / before if before else 0.0 for before, after in pairwise(alive))
        self._expected[proposer] = [min(max(rate, LEAST_RATE), 1.0) for rate in rates]
        self._estimates.pop(proposer, None)

    def observe(
        self,
        source: DraftSource,
        request_id: str,
        length: int,
        accepted: int,
        *,
        kind: str = "",
        gap: int = 0,
        empty: bool = False,
    ) -> None:
        """Count one draft.

        Args:
            length: that was asked for; 0 says nothing.
            accepted: candidates that were kept.
            gap: plain rounds that went before it.
            empty: nothing was delivered.
        """
        if length == 0:
            return
        own = self._requests.setdefault(request_id, {}).setdefault(source, RequestCounts())
        if own.question(self.estimate(source, request_id, 1, kind=kind)[0][0], length, accepted) and not empty:
            self._doubt_pools(source, kind, GOOD_NEWS if accepted else BAD_NEWS)
        own.add(length, accepted, max(REQUEST_FADE ** (1 + gap), LEAST_FADE), EMPTY_OWN_WEIGHT if empty else 1.0)
        for pool in (
            self._sources.setdefault(source, PositionCounts()),
            self._kinds.setdefault((source, kind), PositionCounts()),
        ):
            if empty:
                pool.add(length, accepted, weight=EMPTY_WEIGHT)
            else:
                pool.add(length, accepted, POOL_FADE)
        self._estimates.pop(source.proposer, None)
        self.version += 1

    def _doubt_pools(self, source: DraftSource, kind: str, kept: float) -> None:
        """The next request may be like this one."""
        for pool in (self._sources.get(source), self._kinds.get((source, kind))):
            if pool is not None:
                pool.reached[:] = [each * kept for each in pool.reached]
                pool.accepted[:] = [each * kept for each in pool.accepted]

    def estimate(self, source: DraftSource, request_id: str, length: int, *, kind: str = "") -> Estimate:
        """Estimated s_1 .. s_length: the chance that the first i candidates are all accepted.

        The errors of the positions' rates are those of Beta posteriors, and add up on the logarithmic scale
        (delta method). Positions whose survival is negligible are left out. The lists are not to be changed: they are
        kept until the proposer's drafts teach something new.
        """
        requests = self._requests.get(request_id)
        own = None if requests is None else requests.get(source)
        known = self._estimates.setdefault(source.proposer, {})
        key = source.grade, "" if own is None else request_id, kind
        found = known.get(key)
        if found is None or found[0] < length:
            found = known[key] = length, self._estimate(source, own, length, kind)
        survival, spread = found[1]
        return (survival, spread) if len(survival) <= length else (survival[:length], spread[:length])

    def _estimate(self, source: DraftSource, own: RequestCounts | None, length: int, kind: str) -> Estimate:
        expected = self._expected.get(source.proposer, ())
        pools = [(counts.reached, counts.accepted) for counts in self._pools(source)]
        of_kind = self._kinds.get((source, kind), _NOTHING)
        ours = own or _NOTHING
        own_weight = POOL_WEIGHT if own is None else own.pool_weight
        survival: list[float] = []
        spread: list[float] = []
        alive, variance, prior = 1.0, 0.0, PRIOR_RATE
        for position in range(length):
            rate, count = prior, NEIGHBOUR_WEIGHT if position else PRIOR_WEIGHT
            if position < len(expected):
                rate, count = expected[position], EXPECTED_WEIGHT
            for reached, accepted in pools:
                if position < len(reached):
                    rate = (accepted[position] + rate * count) / (reached[position] + count)
                    count += reached[position]
            prior = rate
            if position < len(of_kind.reached):
                weight, seen = min(count, POOL_WEIGHT), of_kind.reached[position]
                rate, count = (of_kind.accepted[position] + rate * weight) / (seen + weight), seen + weight
            if position < len(ours.reached):
                weight, seen = min(count, own_weight), ours.reached[position]
                rate, count = (ours.accepted[position] + rate * weight) / (seen + weight), seen + weight
            alive *= rate
            variance += (1.0 - rate) / (rate * (count + 1.0))
            survival.append(alive)
            spread.append(math.sqrt(variance))
            if alive < NEGLIGIBLE:
                break
        return survival, spread

    def survival(
        self, source: DraftSource, request_id: str, length: int, *, kind: str = "", caution: float = 0.0
    ) -> Sequence[float]:
        """The estimate, or with `caution` the bound that many standard deviations below, above where it is negative."""
        return bounded(self.estimate(source, request_id, length, kind=kind), caution)

    def suspects(self, source: DraftSource, request_id: str) -> bool:
        """Whether the last draft of this request was accepted against expectation, which another one would tell of."""
        own = self._requests.get(request_id, {}).get(source)
        return own is not None and own.hopeful

    def grades(self, proposer: str) -> list[int]:
        """Grades of this proposer's drafts that were seen."""
        return [source.grade for source in self._sources if source.proposer == proposer]

    def drop(self, request_id: str) -> None:
        """Forget a finished request; the pools keep what it taught."""
        if self._requests.pop(request_id, None):
            self._estimates.clear()

    def learned(self) -> list[dict[str, Any]]:
        """The pools as plain data, for `remember`."""
        pools: Iterator[tuple[DraftSource, str | None, PositionCounts]] = iter(
            [
                *((source, None, counts) for source, counts in self._sources.items()),
                *((source, kind, counts) for (source, kind), counts in self._kinds.items()),
            ]
        )
        return [
            {
                "proposer": source.proposer,
                "grade": source.grade,
                "kind": kind,
                "reached": [round(each, 3) for each in counts.reached],
                "accepted": [round(each, 3) for each in counts.accepted],
            }
            for source, kind, counts in pools
        ]

    def remember(self, pools: Sequence[Mapping[str, Any]]) -> None:
        """Begin with what an earlier engine learned.

        Raises:
            ValueError, TypeError, KeyError: that is no such data.
        """
        found: dict[DraftSource, PositionCounts] = {}
        kinds: dict[tuple[DraftSource, str], PositionCounts] = {}
        for entry in pools:
            source = DraftSource(str(entry["proposer"]), int(entry["grade"]))
            reached, accepted = [float(each) for each in entry["reached"]], [float(each) for each in entry["accepted"]]
            if len(reached) != len(accepted) or not all(
                0 <= kept <= tried + 1e-2 < math.inf for kept, tried in zip(accepted, reached, strict=True)
            ):
                raise ValueError(f"accepted must be at most reached at each position, got {entry!r:.200}")
            scale = min(1.0, REMEMBERED_WEIGHT / max(reached, default=1.0)) if any(reached) else 1.0
            counts = PositionCounts([each * scale for each in reached], [each * scale for each in accepted])
            if entry["kind"] is None:
                found[source] = counts
            else:
                kinds[source, str(entry["kind"])] = counts
        self._sources, self._kinds = found, kinds
        self._estimates.clear()

    def _pools(self, source: DraftSource) -> list[PositionCounts]:
        """Counts of the grades up to this one, the lowest first."""
        lower = (DraftSource(source.proposer, grade) for grade in range(source.grade))
        return [self._sources[each] for each in (*lower, source) if each in self._sources]


def bounded(estimate: Estimate, caution: float) -> Sequence[float]:
    """The bound `caution` standard deviations below the estimate; above it where `caution` is negative.

    The lower one on the logarithmic scale, which keeps it above 0; the upper one not, as it would run away where
    next to nothing survives.
    """
    survival, spread = estimate
    if caution == 0.0:
        return survival
    bounds, least = [], 1.0
    for mean, deviation in zip(survival, spread, strict=True):
        factor = math.exp(-caution * deviation) if caution > 0.0 else 1.0 - caution * deviation
        least = min(mean * factor, least)
        bounds.append(least)
    return bounds
