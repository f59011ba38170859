"""The one objective of the controller and of the advisor: expected emitted tokens per second of a round.

    sum over requests of (1 + s_1 + ... + s_k)  /  (verify(rows, batch, context) + draft(lengths, batch, lag))

This is Leviathan et al. 2023, theorem 3.8, with measured survival in place of independent acceptance. The
controller maximises it over what may be drafted next, with expected tokens; the advisor takes it of rounds that were
recorded, with those that were emitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from gamaneh.control.cost import CostModel
from gamaneh.control.router import Eligible, Route
from gamaneh.control.survival import bounded

MOST_STEPS = 256
"""Positions of all drafts of a batch that are thought about: those that survive most often."""

PATIENCE = 2
"""Lengths in a row that bring less than the best so far, after which no longer one is tried: the rate has one peak,
but for steps in what rows cost."""

TILE = 16
"""Rows that may cost what one costs: as many lengths of a batch may bring less before one brings more again."""


class AskedProposer(NamedTuple):
    """Drafts of one proposer in a round: of which length at most, for how many requests, with how much to read."""

    proposer: str
    length: int
    batch: int = 1
    lag: float = 0.0


def round_seconds(
    cost: CostModel, batch: int, rows: int, asked: Sequence[AskedProposer] = (), *, context: int = 0
) -> float:
    """Expected seconds of a round of `batch` requests with `rows` token rows in all, and of its drafts."""
    drafts = sum(cost.draft_seconds(each.proposer, each.length, batch=each.batch, lag=each.lag) for each in asked)
    return cost.verify_seconds(rows, batch=batch, context=context) + drafts


def objective(
    cost: CostModel, tokens: float, batch: int, rows: int, asked: Sequence[AskedProposer] = (), *, context: int = 0
) -> float:
    """Tokens per second of a round that emits `tokens`, all its requests together."""
    return tokens / round_seconds(cost, batch, rows, asked, context=context)


@dataclass(slots=True)
class Offer:
    """Drafts that a request could have from one proposer; made anew in each round, and not to be changed.

    Args:
        survival: s_1, s_2, ... as far as the draft may go.
        spread: the standard deviations of their logarithms.
        grade: of the drafts.
        lag: tokens that the proposer has to read first, as this round's share: catching up pays
            over all rounds that follow.
    """

    request_id: str
    route: Route
    survival: Sequence[float]
    spread: Sequence[float] = ()
    grade: int = 0
    lag: float = 0.0
    _bounds: dict[float, Sequence[float]] = field(default_factory=dict)

    @property
    def proposer(self) -> str:
        return self.route.proposer

    def bound(self, caution: float) -> Sequence[float]:
        """The survival `caution` standard deviations below the estimate; above it where `caution` is negative."""
        if caution == 0.0 or not self.spread:
            return self.survival
        found = self._bounds.get(caution)
        if found is None:
            found = self._bounds[caution] = bounded((self.survival, self.spread), caution)
        return found


class RoundEstimate:
    """A batch of requests: seconds and emitted tokens of a round without drafts, and the best drafts to add.

    Args:
        rows: token rows without the drafts that are to be decided.
        batch: requests, each of which emits one token whatever the drafts.
        context: their tokens in the cache.
    """

    def __init__(self, cost: CostModel, rows: int, batch: int, context: int) -> None:
        self.cost, self.rows, self.batch, self.context = cost, rows, batch, context
        self._verify: dict[int, float] = {}
        self._curve = cost.verify_curve(batch=batch, context=context)
        self._lines: dict[tuple[str, float], tuple[float, float]] = {}
        self._best: dict[tuple[str, str, float], tuple[int, float]] = {}
        self.plain_seconds = self.verify_seconds(0)
        self.plain_rate = batch / self.plain_seconds

    def verify_seconds(self, extra: int) -> float:
        """Seconds of a verify with `extra` rows of drafts."""
        found = self._verify.get(extra)
        if found is None:
            found = self._verify[extra] = self._curve(self.rows + extra)
        return found

    def extra_seconds(self, route: Route, length: int, lag: float, beside: int = 0) -> float:
        """What one draft adds to a round with `beside` rows of other drafts."""
        verify = self.verify_seconds(beside + length * route.branching) - self.verify_seconds(beside)
        return verify + self.draft_seconds(route.proposer, length, lag)

    def draft_seconds(self, proposer: str, length: int, lag: float) -> float:
        """Seconds of one draft."""
        return self.cost.draft_seconds(proposer, length, lag=lag)

    def best_alone(self, offer: Offer, caution: float = 0.0, most: int | None = None) -> tuple[int, float]:
        """Best draft length when this request alone drafts, and the batch's tokens per second; 0, 0 for no draft.

        Args:
            caution: standard deviations below the estimate by which survival is judged.
            most: longest draft that is looked at; None for all.
        """
        if most is not None:
            return self._best_alone(offer, offer.bound(caution)[:most])
        key = offer.request_id, offer.proposer, caution
        if key not in self._best:
            self._best[key] = self._best_alone(offer, offer.bound(caution))
        return self._best[key]

    def _best_alone(self, offer: Offer, survival: Sequence[float]) -> tuple[int, float]:
        best, best_rate, tokens, worse = 0, 0.0, float(self.batch), 0
        rows, branching = 0, offer.route.branching
        drafting, level = self._line(offer.proposer, offer.lag)
        verify = self._verify
        for length, share in enumerate(survival, 1):
            tokens, rows, drafting = tokens + share, rows + branching, drafting + level
            rate = tokens / ((verify[rows] if rows in verify else self.verify_seconds(rows)) + drafting)
            if rate > best_rate:
                best, best_rate, worse = length, rate, 0
            else:
                worse += 1
                if worse > PATIENCE:
                    break
        return best, best_rate

    def _line(self, proposer: str, lag: float) -> tuple[float, float]:
        if (proposer, lag) not in self._lines:
            self._lines[proposer, lag] = self.cost.draft_line(proposer, lag=lag)
        return self._lines[proposer, lag]

    def rate_alone(self, offer: Offer, survival: Sequence[float], length: int) -> float:
        """The batch's tokens per second when this request alone drafts, and so far."""
        tokens = self.batch + sum(survival[:length])
        return tokens / (self.plain_seconds + self.extra_seconds(offer.route, length, offer.lag))

    def best_lengths(
        self, offers: Sequence[Offer], caution: float, most: int | None = None
    ) -> tuple[dict[str, int], float]:
        """Draft lengths by request that bring most tokens per second, and how many; see `best_alone`."""
        if len(offers) == 1:
            length, rate = self.best_alone(offers[0], caution, most)
            return ({offers[0].request_id: length} if length else {}), rate
        survivals = [offer.bound(caution)[:most] for offer in offers]
        return _Allocation(self, offers, survivals).best() if offers else ({}, 0.0)

    def gain(self, offers: Mapping[str, Offer], lengths: Mapping[str, int]) -> float:
        """Plain steps that drafts of these lengths are likely to gain over plain decoding; a loss is below 0."""
        chosen = [(offers[request_id], length) for request_id, length in lengths.items()]
        tokens = self.batch + sum(sum(offer.survival[:length]) for offer, length in chosen)
        rows = sum(length * offer.route.branching for offer, length in chosen)
        seconds = self.verify_seconds(rows)
        for name in {offer.proposer for offer, _ in chosen}:
            own = [(offer, length) for offer, length in chosen if offer.proposer == name]
            lag, longest = sum(offer.lag for offer, _ in own), max(length for _, length in own)
            seconds += self.cost.draft_seconds(name, longest, batch=len(own), lag=lag)
        return tokens / self.batch - seconds / self.plain_seconds


class _Allocation:
    """The choice of positions to draft for many requests.

    The seconds of a proposer depend on its longest draft, those of the verify on the number of rows, of which
    a draft that branches has several for each level.
    With a cap on the draft length of each proposer, the best positions are therefore those of highest
    survival; and survival falls along a path, so that they are valid drafts. The caps are improved one
    proposer at a time.
    """

    def __init__(self, round_: RoundEstimate, offers: Sequence[Offer], survivals: Sequence[Sequence[float]]) -> None:
        steps = sorted(
            (-share, length, at) for at, survival in enumerate(survivals) for length, share in enumerate(survival, 1)
        )[:MOST_STEPS]
        self.round, self.offers, self.steps = round_, offers, steps
        self.longest = [len(survival) for survival in survivals]
        self.survival = -np.array([step[0] for step in steps])
        self.length = np.array([step[1] for step in steps])
        names = sorted({offer.proposer for offer in offers})
        self.proposer = np.array([names.index(offers[step[2]].proposer) for step in steps])
        own = [[at for at, offer in enumerate(offers) if offer.proposer == name] for name in names]
        self.own = own
        self.drafts = [
            round_.cost.draft_line(name, batch=len(each), lag=sum(offers[at].lag for at in each))
            for name, each in zip(names, own, strict=True)
        ]
        self.rows = np.array([offers[step[2]].route.branching for step in steps])
        self.verify = np.array([round_.verify_seconds(rows) for rows in range(int(self.rows.sum()) + 1)])

    def best(self) -> tuple[dict[str, int], float]:
        """Draft lengths by request, and the tokens per second."""
        caps = [max(self.longest[at] for at in own) for own in self.own]
        patience = max(PATIENCE, TILE // len(self.offers))
        for at in range(len(caps)):
            best, worse = (0, -1.0), 0
            for cap in range(caps[at] + 1):
                rate = self._best_prefix([*caps[:at], cap, *caps[at + 1 :]])[1]
                best, worse = ((cap, rate), 0) if rate > best[1] else (best, worse + 1)
                if worse > patience:
                    break
            caps[at] = best[0]
        count, rate = self._best_prefix(caps)
        taken = np.flatnonzero(self._allowed(caps))[:count]
        return {self.offers[self.steps[step][2]].request_id: self.steps[step][1] for step in taken}, rate

    def _best_prefix(self, caps: Sequence[int]) -> tuple[int, float]:
        """How many of the allowed positions to take, and the tokens per second."""
        allowed = self._allowed(caps)
        survival = self.survival[allowed]
        if not len(survival):
            return 0, self.round.plain_rate
        drafts = sum(fixed + cap * level for (fixed, level), cap in zip(self.drafts, caps, strict=True) if cap)
        verify = self.verify[self.rows[allowed].cumsum()]
        rates = (self.round.batch + survival.cumsum()) / (verify + drafts)
        best = int(rates.argmax())
        return best + 1, float(rates[best])

    def _allowed(self, caps: Sequence[int]) -> np.ndarray:
        allowed: np.ndarray = self.length <= np.array(caps)[self.proposer]
        return allowed


def the_round(cost: CostModel, eligible: Sequence[Eligible]) -> RoundEstimate:
    """The round of these requests; those with a fixed draft length come with their drafts."""
    fixed = sum(each.routes[0].allowed(min(each.fixed or 0, each.most)) * each.routes[0].branching for each in eligible)
    context = sum(each.context for each in eligible)
    return RoundEstimate(cost, len(eligible) + fixed, len(eligible), context)
