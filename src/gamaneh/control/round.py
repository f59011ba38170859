"""What one round of a batch would cost and bring, with these drafts or with others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gamaneh.control.cost import CostModel
from gamaneh.control.router import Route

MOST_CANDIDATES = 256
"""Candidates of a whole batch that are thought about: those that survive most often."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request that may draft.

    Args:
        routes: proposers that it may use, from the router; at least one.
        max_depth: longest draft that the request's limits allow.
        fixed: draft length asked for; None adapts it.
        kind: of request; what is learned about one helps the others.
        context: its tokens in the cache.
        lag: tokens that a proposer has not read yet, by proposer.
        expected: tokens that the request is expected still to emit.
    """

    request_id: str
    routes: tuple[Route, ...]
    max_depth: int
    fixed: int | None = None
    kind: str = ""
    context: int = 0
    lag: Mapping[str, int] = field(default_factory=dict)
    expected: float = 64.0


@dataclass(frozen=True, slots=True)
class Offer:
    """Drafts that a request could have from one proposer.

    Args:
        survival: cautious s_1, s_2, ... as far as the draft may go.
        grade: of the drafts.
        lag: tokens that the proposer has to read first, as this round's share: catching up pays
            over all rounds that follow.
    """

    request_id: str
    route: Route
    survival: Sequence[float]
    grade: int = 0
    lag: float = 0.0

    @property
    def proposer(self) -> str:
        return self.route.proposer


class RoundEstimate:
    """A batch of requests: seconds and emitted tokens of a round without drafts, and the best drafts to add.

    Args:
        rows: token rows without the drafts that are to be decided.
        size: requests in the batch, each of which emits one token whatever the drafts.
        context: their tokens in the cache.
    """

    def __init__(self, cost: CostModel, rows: int, size: int, context: int) -> None:
        self.cost, self.rows, self.size, self.context = cost, rows, size, context
        self._verify: dict[int, float] = {}
        self._drafts: dict[tuple[str, int], float] = {}
        self._lags: dict[str, float] = {}
        self.plain_seconds = self.verify_seconds(0)
        self.plain_rate = size / self.plain_seconds

    def verify_seconds(self, extra: int) -> float:
        """Seconds of a verify with `extra` rows of drafts."""
        computed = self.cost.bucket(self.rows + extra)
        if computed not in self._verify:
            self._verify[computed] = self.cost.verify_seconds(computed, batch=self.size, context=self.context)
        return self._verify[computed]

    def extra_seconds(self, route: Route, depth: int, lag: float, beside: int = 0) -> float:
        """What one draft adds to a round with `beside` rows of other drafts."""
        verify = self.verify_seconds(beside + depth * route.branching) - self.verify_seconds(beside)
        return verify + self.draft_seconds(route.proposer, depth, lag)

    def draft_seconds(self, proposer: str, depth: int, lag: float) -> float:
        """Seconds of one draft."""
        if (proposer, depth) not in self._drafts:
            self._drafts[proposer, depth] = self.cost.draft_seconds(proposer, depth)
        if proposer not in self._lags:
            self._lags[proposer] = self.cost.draft_seconds(proposer, 1, lag=1.0) - self.cost.draft_seconds(proposer, 1)
        return self._drafts[proposer, depth] + self._lags[proposer] * lag

    def best_alone(self, offer: Offer) -> tuple[int, float]:
        """Best draft length when this request alone drafts, and the batch's tokens per second; 0, 0 for no draft."""
        best, best_rate, expected = 0, 0.0, float(self.size)
        for depth, survival in enumerate(offer.survival, 1):
            expected += survival
            rate = expected / (self.plain_seconds + self.extra_seconds(offer.route, depth, offer.lag))
            if rate > best_rate:
                best, best_rate = depth, rate
        return best, best_rate

    def rate_alone(self, offer: Offer, depth: int) -> float:
        """The batch's tokens per second when this request alone drafts, and so far."""
        expected = self.size + sum(offer.survival[:depth])
        return expected / (self.plain_seconds + self.extra_seconds(offer.route, depth, offer.lag))

    def best_depths(self, offers: Sequence[Offer], least_rate: float) -> dict[str, int]:
        """Draft lengths by request that bring most tokens per second; empty where nothing exceeds `least_rate`."""
        if len(offers) == 1:
            depth, rate = self.best_alone(offers[0])
            return {offers[0].request_id: depth} if rate > least_rate else {}
        return _Allocation(self, offers).best(least_rate) if offers else {}


class _Allocation:
    """The choice of candidates for many requests.

    The seconds of a proposer depend on its longest draft, those of the verify on the number of rows, of which
    a draft that branches has several for each level.
    With a cap on the draft length of each proposer, the best candidates are therefore those of highest
    survival; and survival falls along a path, so that they are valid drafts. The caps are improved one
    proposer at a time.
    """

    def __init__(self, batch: RoundEstimate, offers: Sequence[Offer]) -> None:
        steps = sorted(
            (-survival, depth, at)
            for at, offer in enumerate(offers)
            for depth, survival in enumerate(offer.survival, 1)
        )[:MOST_CANDIDATES]
        self.batch, self.offers, self.steps = batch, offers, steps
        self.survival = -np.array([step[0] for step in steps])
        self.depth = np.array([step[1] for step in steps])
        names = sorted({offer.proposer for offer in offers})
        self.proposer = np.array([names.index(offers[step[2]].proposer) for step in steps])
        self.own = [[offer for offer in offers if offer.proposer == name] for name in names]
        self.rows = np.array([offers[step[2]].route.branching for step in steps])

    def best(self, least_rate: float) -> dict[str, int]:
        """Draft lengths by request; empty where no choice exceeds `least_rate`."""
        caps = [max((len(offer.survival) for offer in own), default=0) for own in self.own]
        for at in range(len(caps)):
            trials = [[*caps[:at], cap, *caps[at + 1 :]] for cap in range(caps[at], -1, -1)]
            caps = max(trials, key=lambda trial: self._best_prefix(trial)[1])
        count, rate = self._best_prefix(caps)
        if rate <= least_rate:
            return {}
        taken = np.flatnonzero(self._allowed(caps))[:count]
        return {self.offers[self.steps[step][2]].request_id: self.steps[step][1] for step in taken}

    def _best_prefix(self, caps: Sequence[int]) -> tuple[int, float]:
        """How many of the allowed candidates to take, and the tokens per second."""
        allowed = self._allowed(caps)
        survival = self.survival[allowed]
        if not len(survival):
            return 0, 0.0
        drafts = sum(self._draft_seconds(own, cap) for own, cap in zip(self.own, caps, strict=True))
        verify = [self.batch.verify_seconds(int(rows)) for rows in self.rows[allowed].cumsum()]
        rates = (self.batch.size + survival.cumsum()) / (np.array(verify) + drafts)
        best = int(rates.argmax())
        return best + 1, float(rates[best])

    def _allowed(self, caps: Sequence[int]) -> np.ndarray:
        allowed: np.ndarray = self.depth <= np.array(caps)[self.proposer]
        return allowed

    def _draft_seconds(self, own: Sequence[Offer], cap: int) -> float:
        lag = sum(offer.lag for offer in own)
        return self.batch.cost.draft_seconds(own[0].proposer, cap, batch=len(own), lag=lag)


def estimate(cost: CostModel, candidates: Sequence[Candidate]) -> RoundEstimate:
    """The batch of these requests; those with a fixed draft length come with their drafts."""
    fixed = sum(c.routes[0].allowed(min(c.fixed or 0, c.max_depth)) * c.routes[0].branching for c in candidates)
    context = sum(candidate.context for candidate in candidates)
    return RoundEstimate(cost, len(candidates) + fixed, len(candidates), context)
