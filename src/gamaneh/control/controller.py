"""Adaptive draft length: how far each request may draft in the next round, with what, 0 included, and why.

The controller maximises expected emitted tokens per second over the whole batch,

    sum over requests of (1 + s_1 + ... + s_k) / (verify(rows) + draft(depth)),

with survival s_i and costs as measured here (Leviathan et al. 2023, theorem 3.8, without its
assumption of independent acceptance). It is cautious: survival is a lower bound, and drafting has to
promise a margin to begin. Exactness never depends on what it decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from gamaneh.control.acceptance import CAUTION, AcceptanceTracker, Source
from gamaneh.control.cost import CostModel
from gamaneh.control.probing import PROBE_DEPTH, ProbeBudget
from gamaneh.control.round import Candidate, Offer, RoundEstimate, estimate
from gamaneh.control.router import Route
from gamaneh.core import EMPTY_DRAFT, NO_DETAILS, PLAIN, Decision, Draft, ReasonCode, ReasonDetails, StepReport

MARGIN = 1.05
"""Gain over plain decoding that a request has to promise to begin drafting; it goes on down to 1."""

LOOKED_AT = 4
"""Candidates by which it is judged whether a request would draft alone; only the words depend on it."""

Peek = Callable[[str, Sequence[str], int], Mapping[str, Draft]]
"""Proposer, requests and longest depth -> the drafts that the proposer has for them at once."""

Glimpses = Mapping[tuple[str, str], Draft]
"""Drafts seen before the decision, by (proposer, request)."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A short draft to find out; `draft_seconds` of it are paid for already."""

    request_id: str
    route: Route
    depth: int
    draft_seconds: float


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is known before a round.

    Args:
        batch: what drafts cost and bring.
        glimpses: drafts that were seen.
        offers: the best proposer of each request that has any.
        depths: the best draft lengths, by request.
    """

    batch: RoundEstimate
    glimpses: Glimpses
    offers: Mapping[str, Offer]
    depths: Mapping[str, int]

    def seen_depth(self, candidate: Candidate, route: Route) -> int:
        """Longest draft of this route: what was seen of an instant one, any length of others."""
        if not route.instant:
            return route.allowed(candidate.max_depth)
        return min(self.glimpses.get((route.proposer, candidate.request_id), EMPTY_DRAFT).depth, candidate.max_depth)

    def uses(self, candidate: Candidate, route: Route) -> bool:
        """Whether the request drafts by this route."""
        return candidate.request_id in self.depths and self.offers[candidate.request_id].proposer == route.proposer

    @property
    def rows(self) -> int:
        """Rows of the best drafts."""
        return sum(depth * self.offers[request_id].route.branching for request_id, depth in self.depths.items())

    def given_up(self, candidate: Candidate) -> float:
        """Seconds that the draft of this request saves, and that are lost when it does something else."""
        if candidate.request_id not in self.depths:
            return 0.0
        return sum(self.offers[candidate.request_id].survival) / self.batch.plain_rate


class Controller:
    """Decides from measured survival and measured costs."""

    def __init__(self, acceptance: AcceptanceTracker, cost: CostModel) -> None:
        self.acceptance, self.cost = acceptance, cost
        self.budget = ProbeBudget()
        self.decisions: dict[str, Decision] = {}
        self._kinds: dict[str, str] = {}
        self._plain_rounds: dict[str, int] = {}
        self._drafting: set[str] = set()
        self._probe: Probe | None = None

    def decide(self, candidates: Sequence[Candidate], peek: Peek = lambda proposer, ids, depth: {}) -> list[Decision]:
        """One decision per candidate, all of them together being one batch."""
        outlook = self._outlook(candidates, peek)
        self._probe = self._find_probe([c for c in candidates if _adapts(c)], outlook)
        for candidate in candidates:
            self._remember(candidate, self._decision(candidate, outlook))
        return [self.decisions[candidate.request_id] for candidate in candidates]

    def observe(self, report: StepReport, grade: int = 0) -> None:
        """Learn what became of a draft of this grade."""
        if report.depth == 0:
            return
        request_id = report.request_id
        self.acceptance.observe(
            Source(report.proposer, grade),
            request_id,
            report.depth,
            report.survived,
            kind=self._kinds.get(request_id, ""),
            gap=self._plain_rounds.pop(request_id, 0),
        )

    def observe_draft(self, proposer: str, depth: int, seconds: float, *, batch: int, lag: float) -> None:
        """Learn what a proposer's drafts took; a probe that took longer than expected is paid for."""
        self.cost.observe_draft(proposer, depth, seconds, batch=batch, lag=lag)
        probe = self._probe
        if probe is not None and probe.route.proposer == proposer and batch == 1:
            self.budget.credit -= max(seconds - probe.draft_seconds, 0.0)

    def drop(self, request_id: str) -> None:
        """Forget a finished request."""
        self.acceptance.drop(request_id)
        self.decisions.pop(request_id, None)
        self._kinds.pop(request_id, None)
        self._plain_rounds.pop(request_id, None)
        self._drafting.discard(request_id)

    def _outlook(self, candidates: Sequence[Candidate], peek: Peek) -> Outlook:
        batch = estimate(self.cost, candidates)
        glimpses = self._look(candidates, batch, peek)
        found = (self._best_offer(candidate, batch, glimpses) for candidate in candidates if _adapts(candidate))
        offers = {offer.request_id: offer for offer in found if offer is not None}
        goes_on = any(request_id in self._drafting for request_id in offers)
        depths = batch.best_depths(list(offers.values()), batch.plain_rate * (1.0 if goes_on else MARGIN))
        return Outlook(batch, glimpses, offers, depths)

    def _look(self, candidates: Sequence[Candidate], batch: RoundEstimate, peek: Peek) -> Glimpses:
        """Drafts of instant proposers, where they may matter."""
        wanted: dict[str, list[Candidate]] = {}
        for candidate in candidates:
            for route in candidate.routes:
                if route.instant and self._worth_a_look(candidate, route, batch):
                    wanted.setdefault(route.proposer, []).append(candidate)
        glimpses: dict[tuple[str, str], Draft] = {}
        for name, asking in wanted.items():
            longest = max(candidate.max_depth for candidate in asking)
            seen = peek(name, [candidate.request_id for candidate in asking], longest)
            glimpses |= {(name, request_id): draft for request_id, draft in seen.items()}
        return glimpses

    def _worth_a_look(self, candidate: Candidate, route: Route, batch: RoundEstimate) -> bool:
        if candidate.fixed is not None:
            return len(candidate.routes) > 1
        if self.budget.affords(route.proposer, batch.extra_seconds(route, min(PROBE_DEPTH, candidate.max_depth), 0.0)):
            return True
        grades = self.acceptance.grades(route.proposer)
        offers = (self._offer(candidate, route, grade, candidate.max_depth) for grade in grades)
        return any(batch.best_alone(offer)[1] > batch.plain_rate for offer in offers)

    def _best_offer(self, candidate: Candidate, batch: RoundEstimate, glimpses: Glimpses) -> Offer | None:
        """The proposer that brings most when this request alone drafts.

        Of those that surely pay, the one that may be best (upper confidence bound, Auer et al. 2002): what
        is little known gets its chance, and loses it when it turns out to be worse.
        """
        offers = [offer for route in candidate.routes if (offer := self._seen_offer(candidate, route, glimpses))]
        if len(offers) < 2:
            return next(iter(offers), None)
        paying = [offer for offer in offers if batch.best_alone(offer)[1] > batch.plain_rate]
        return max(paying or offers, key=lambda offer: batch.best_alone(self._at_best(candidate, offer))[1])

    def _seen_offer(self, candidate: Candidate, route: Route, glimpses: Glimpses) -> Offer | None:
        """None where nothing is offered, or nothing is known yet about what it takes."""
        return self._seen_draft(candidate, route, glimpses) if self.cost.knows(route.proposer) else None

    def _seen_draft(self, candidate: Candidate, route: Route, glimpses: Glimpses) -> Offer | None:
        """None where nothing is offered."""
        if not route.instant:
            return self._offer(candidate, route, 0, route.allowed(candidate.max_depth))
        draft = glimpses.get((route.proposer, candidate.request_id), EMPTY_DRAFT)
        depth = min(draft.depth, candidate.max_depth)
        return self._offer(candidate, route, draft.grade, depth) if depth else None

    def _offer(self, candidate: Candidate, route: Route, grade: int, depth: int) -> Offer:
        survival = self._survival(candidate, Source(route.proposer, grade), depth, self._caution(candidate))
        if candidate.request_id not in self._drafting:
            survival = [share / MARGIN for share in survival]
        rounds = max(candidate.expected / (1.0 + sum(survival)), 1.0)
        return Offer(candidate.request_id, route, survival, grade, candidate.lag.get(route.proposer, 0) / rounds)

    def _caution(self, candidate: Candidate) -> float:
        """Doubtful before drafting, hopeful while drafting: else longer drafts than usual would never be tried."""
        return -CAUTION if candidate.request_id in self._drafting else CAUTION

    def _at_best(self, candidate: Candidate, offer: Offer) -> Offer:
        """The same with all hopes fulfilled."""
        hope = self._survival(candidate, Source(offer.proposer, offer.grade), len(offer.survival), -CAUTION)
        return replace(offer, survival=hope)

    def _survival(self, candidate: Candidate, source: Source, depth: int, caution: float) -> list[float]:
        return self.acceptance.survival(source, candidate.request_id, depth, kind=candidate.kind, caution=caution)

    def _find_probe(self, candidates: Sequence[Candidate], outlook: Outlook) -> Probe | None:
        """The proposer, then the request, that was not tried for longest, if the budget allows."""
        untried = [
            (self.budget.last_tried(route.proposer), -self._plain_rounds.get(candidate.request_id, 0), at, route)
            for at, candidate in enumerate(candidates)
            for route in candidate.routes
            if not outlook.uses(candidate, route)
        ]
        if untried:
            self.budget.earn(outlook.batch.plain_seconds)
        affordable = [entry for entry in untried if self.budget.affords(entry[3].proposer, 0.0)]
        probes = (
            self._affordable(candidates[at], route, outlook)
            for *_, at, route in sorted(affordable, key=lambda entry: entry[:3])
        )
        return next((probe for probe in probes if probe is not None), None)

    def _affordable(self, candidate: Candidate, route: Route, outlook: Outlook) -> Probe | None:
        """A probe of this route, paid for; it costs what it adds to the round and what another draft would save."""
        depth = min(PROBE_DEPTH, outlook.seen_depth(candidate, route))
        lag = candidate.lag.get(route.proposer, 0)
        seconds = outlook.batch.extra_seconds(route, depth, lag, outlook.rows) + outlook.given_up(candidate)
        if depth == 0 or not self.budget.affords(route.proposer, seconds):
            return None
        self.budget.spend(route.proposer, seconds)
        return Probe(candidate.request_id, route, depth, self.cost.draft_seconds(route.proposer, depth, lag=lag))

    def _decision(self, candidate: Candidate, outlook: Outlook) -> Decision:
        request_id, first, probe = candidate.request_id, candidate.routes[0], self._probe
        if first.proposer == PLAIN:
            return _plain(first.reason, first.code, first.details)
        if candidate.fixed is not None:
            return self._fixed(candidate, outlook)
        if probe is not None and probe.request_id == request_id:
            return _probe(probe)
        if request_id in outlook.depths:
            return _pays(outlook.offers[request_id].route, outlook.depths[request_id])
        return self._no_draft(candidate, outlook)

    def _fixed(self, candidate: Candidate, outlook: Outlook) -> Decision:
        """The length is given; a single route is asked in any case."""
        depth, routes = min(candidate.fixed or 0, candidate.max_depth), candidate.routes
        route = routes[0] if len(routes) == 1 else self._most_promising(candidate, depth, outlook.glimpses)
        return _draft(route, route.allowed(depth), "draft length fixed by option", ReasonCode.FIXED)

    def _most_promising(self, candidate: Candidate, depth: int, glimpses: Glimpses) -> Route:
        """The route of most tokens per second at this length, all hopes fulfilled; never timed, it costs nothing."""
        alone = RoundEstimate(self.cost, 1, 1, candidate.context)

        def promise(route: Route) -> float:
            offer = self._seen_draft(candidate, route, glimpses)
            if offer is None:
                return 0.0
            return alone.rate_alone(self._at_best(candidate, offer), min(depth, len(offer.survival)))

        return max(candidate.routes, key=promise)

    def _no_draft(self, candidate: Candidate, outlook: Outlook) -> Decision:
        offer = outlook.offers.get(candidate.request_id)
        if offer is None:
            names = tuple(route.proposer for route in candidate.routes)
            reason = f"{' and '.join(names)}: nothing to offer, or not promising"
            return _plain(reason, ReasonCode.NO_DRAFT, ReasonDetails(names))
        if outlook.batch.size > 1 and self._pays_alone(candidate, offer):
            return _plain("drafting would pay for this request alone, but not in this batch", ReasonCode.LOAD)
        return _plain("plain decoding is faster by measurement", ReasonCode.NO_GAIN)

    def _pays_alone(self, candidate: Candidate, offer: Offer) -> bool:
        alone = RoundEstimate(self.cost, 1, 1, candidate.context)
        first = replace(offer, survival=offer.survival[:LOOKED_AT])
        return alone.best_alone(first)[1] > alone.plain_rate

    def _remember(self, candidate: Candidate, decision: Decision) -> None:
        request_id = candidate.request_id
        self.decisions[request_id] = decision
        self._kinds[request_id] = candidate.kind
        if decision.depth == 0:
            self._plain_rounds[request_id] = self._plain_rounds.get(request_id, 0) + 1
        if decision.code is ReasonCode.PAYS:
            self._drafting.add(request_id)
        elif decision.code in (ReasonCode.NO_GAIN, ReasonCode.LOAD):
            self._drafting.discard(request_id)


def _adapts(candidate: Candidate) -> bool:
    return candidate.fixed is None and candidate.max_depth > 0 and candidate.routes[0].proposer != PLAIN


def _probe(probe: Probe) -> Decision:
    name = probe.route.proposer
    return _draft(probe.route, probe.depth, f"{name} is probed", ReasonCode.PROBE, ReasonDetails((name,)))


def _pays(route: Route, depth: int) -> Decision:
    details = replace(route.details, draft_length=depth)
    return _draft(route, depth, f"{route.reason}; best measured rate at {depth}", ReasonCode.PAYS, details)


def _draft(route: Route, depth: int, reason: str, code: ReasonCode, details: ReasonDetails = NO_DETAILS) -> Decision:
    return Decision(route.proposer if depth else PLAIN, depth, depth * route.branching, reason, code, details)


def _plain(reason: str, code: ReasonCode, details: ReasonDetails = NO_DETAILS) -> Decision:
    return Decision(PLAIN, 0, 0, reason, code, details)
