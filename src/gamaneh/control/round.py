"""What one round of a batch would cost and bring, with these drafts or with others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gamaneh.control.cost import CostModel
from gamaneh.control.router import Route


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
        lag: tokens that the proposer has to read first, as this round's share: catching up pays
            over all rounds that follow.
    """

    request_id: str
    route: Route
    survival: Sequence[float]
    lag: float = 0.0

    @property
    def proposer(self) -> str:
        return self.route.proposer


@dataclass(slots=True)
class _Asked:
    """What one proposer is asked for."""

    depth: int = 0
    lags: dict[str, float] = field(default_factory=dict)


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
        self.plain_seconds = self.verify_seconds(0)
        self.plain_rate = size / self.plain_seconds

    def verify_seconds(self, extra: int) -> float:
        """Seconds of a verify with `extra` rows of drafts."""
        if extra not in self._verify:
            self._verify[extra] = self.cost.verify_seconds(self.rows + extra, batch=self.size, context=self.context)
        return self._verify[extra]

    def extra_seconds(self, proposer: str, depth: int, lag: float, beside: int = 0) -> float:
        """What one draft adds to a round with `beside` rows of other drafts."""
        verify = self.verify_seconds(beside + depth) - self.verify_seconds(beside)
        return verify + self.cost.draft_seconds(proposer, depth, lag=lag)

    def best_rate(self, offer: Offer) -> float:
        """Tokens per second of the batch when this request alone drafts, as far as is best; 0 without candidates."""
        rate, expected = 0.0, float(self.size)
        for depth, survival in enumerate(offer.survival, 1):
            expected += survival
            rate = max(rate, expected / (self.plain_seconds + self.extra_seconds(offer.proposer, depth, offer.lag)))
        return rate

    def best_depths(self, offers: Sequence[Offer], least_rate: float) -> dict[str, int]:
        """Draft lengths by request that bring most tokens per second; empty where nothing exceeds `least_rate`.

        A proposer whose first draft costs much may stand in the way of another, so the best is
        looked for with each of them left out as well.
        """
        best: dict[str, int] = {}
        for names in _choices({offer.proposer for offer in offers}):
            chosen = [offer for offer in offers if offer.proposer in names]
            depths, rate = self._best_prefix(chosen, least_rate)
            if depths:
                best, least_rate = depths, rate
        return best

    def _best_prefix(self, offers: Sequence[Offer], least_rate: float) -> tuple[dict[str, int], float]:
        """Take candidates in the order of their survival as long as the rate grows.

        Survival falls along a path, so every prefix of that order is a valid set of drafts.
        """
        steps = sorted(
            (-survival, depth, at)
            for at, offer in enumerate(offers)
            for depth, survival in enumerate(offer.survival, 1)
        )
        asked = {offer.proposer: _Asked() for offer in offers}
        seconds = dict.fromkeys(asked, 0.0)
        expected, best = float(self.size), 0
        for taken, (negative, depth, at) in enumerate(steps, 1):
            offer = offers[at]
            expected -= negative
            if self._ask(asked[offer.proposer], offer, depth):
                seconds[offer.proposer] = self._draft_seconds(offer.proposer, asked[offer.proposer])
            rate = expected / (self.verify_seconds(taken) + sum(seconds.values()))
            if rate > least_rate:
                best, least_rate = taken, rate
        return {offers[at].request_id: depth for _, depth, at in steps[:best]}, least_rate

    def _ask(self, asked: _Asked, offer: Offer, depth: int) -> bool:
        """Add one candidate to what is asked for; whether that costs the proposer time."""
        new = offer.request_id not in asked.lags
        if new:
            asked.lags[offer.request_id] = offer.lag
        deeper = depth > asked.depth
        asked.depth = max(asked.depth, depth)
        return new or deeper

    def _draft_seconds(self, proposer: str, asked: _Asked) -> float:
        return self.cost.draft_seconds(proposer, asked.depth, batch=len(asked.lags), lag=sum(asked.lags.values()))


def estimate(cost: CostModel, candidates: Sequence[Candidate]) -> RoundEstimate:
    """The batch of these requests; those with a fixed draft length come with their drafts."""
    fixed = sum(min(candidate.fixed or 0, candidate.max_depth) for candidate in candidates)
    context = sum(candidate.context for candidate in candidates)
    return RoundEstimate(cost, len(candidates) + fixed, len(candidates), context)


def _choices(proposers: set[str]) -> Iterable[set[str]]:
    yield proposers
    if len(proposers) > 1:
        yield from (proposers - {name} for name in sorted(proposers))
