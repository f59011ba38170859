"""Adaptive draft length: how far each request may draft in the next round, with what, 0 included, and why.

The controller maximises the objective of `gamaneh.control.objective` with survival and costs as measured here. What
is not known well it judges hopefully, within a budget of what that may lose beside plain decoding
(`gamaneh.control.budget`). Exactness never depends on what it decides.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gamaneh.control import reasons
from gamaneh.control.budget import Budget
from gamaneh.control.cost import CostModel
from gamaneh.control.fallback import LONG_LAG, Account, Quarantine
from gamaneh.control.learned import Learned
from gamaneh.control.objective import AskedProposer, Offer, RoundEstimate, round_seconds, the_round
from gamaneh.control.router import Eligible, Route
from gamaneh.control.survival import CAUTION, DraftSource, SurvivalTracker
from gamaneh.core import EMPTY_DRAFT, PLAIN, Decision, Glimpses, ReasonCode, StepReport, Stopwatch

MARGIN = 1.02
"""Gain over plain decoding that a request has to promise to begin drafting; it goes on down to 1."""

HOPE = 0.5
"""Standard deviations of hope by which is judged what is not known well, and by which lengths are chosen: what is never
drafted is never learned about."""

PROBE_LENGTH = 2
LEAST_LOSS = 0.3
"""Share of what a probe adds to a round for which it counts as lost at least, whatever it may bring."""

FILLING = 1.5
"""Times what one probe adds to a round that the probes of a batch may add together."""

TRIAL_LENGTH = 2
"""Longest draft where it is not likely that drafting pays."""

HOLD = 4
"""Rounds for which a decision not to draft holds, where nothing was learned or shown meanwhile: deciding takes time,
too, and where nothing pays all of it is lost."""

LOOK = 8
"""Rounds for which it holds which instant proposers are worth a look, where nothing was learned meanwhile."""

LOOKED_AT = 4
"""Candidates by which it is judged whether a request would draft alone; only the words depend on it."""

_STAYS = (ReasonCode.NO_GAIN, ReasonCode.LOAD, ReasonCode.NO_DRAFT, ReasonCode.ASKED_PLAIN)
_ADAPTED = (ReasonCode.PAYS, ReasonCode.TRIAL, ReasonCode.PROBE)


@dataclass(slots=True)
class Totals:
    """Counts of one proposer since the engine was built; `seconds` are those of its drafts."""

    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0

    def add(self, reports: Sequence[StepReport], seconds: float) -> None:
        """One round in which the proposer was asked."""
        self.drafts += sum(report.drafted > 0 for report in reports)
        self.drafted += sum(report.drafted for report in reports)
        self.accepted += sum(report.accepted for report in reports)
        self.seconds += seconds


@dataclass(slots=True)
class Held:
    """Decisions that hold for `left` more rounds, as long as what they go by stays as it is."""

    state: object = None
    decisions: list[Decision] = field(default_factory=list)
    left: int = 0


@dataclass(slots=True)
class Plan:
    """What is known before a round, and what is best by it.

    Args:
        glimpses: drafts that were seen.
        offers: the best proposer of each request that has any.
        lengths: the best draft lengths, by request.
        likely: drafting is likely to pay, and not only hoped to.
        probes: route and length of short drafts to find out, by request.
        measures: nothing is drafted, so that a plain step is timed.
    """

    batch: RoundEstimate
    glimpses: Glimpses
    offers: Mapping[str, Offer]
    lengths: Mapping[str, int]
    likely: bool = True
    probes: dict[str, tuple[Route, int]] = field(default_factory=dict)
    measures: bool = False

    def seen_length(self, request: Eligible, route: Route) -> int:
        """Longest draft of this route: what was seen of an instant one, any length of others."""
        if not route.instant:
            return route.allowed(request.most)
        return min(self.glimpses.get((route.proposer, request.request_id), EMPTY_DRAFT).depth, request.most)

    @property
    def rows(self) -> int:
        """Rows of the best drafts."""
        return sum(length * self.offers[request_id].route.branching for request_id, length in self.lengths.items())

    def uses(self, request: Eligible, route: Route) -> bool:
        """Whether the request drafts by this route."""
        return request.request_id in self.lengths and self.offers[request.request_id].proposer == route.proposer


class Controller:
    """Decides from measured survival and measured costs.

    Args:
        quarantine: where a proposer goes that costs more than it saves.

    Attributes:
        learned: where what was learned is kept across restarts; None keeps nothing.
    """

    def __init__(self, survival: SurvivalTracker, cost: CostModel, quarantine: Quarantine | None = None) -> None:
        self.survival, self.cost, self.quarantine = survival, cost, quarantine or Quarantine()
        self.budget = Budget()
        self.totals: dict[str, Totals] = defaultdict(Totals)
        self.learned: Learned | None = None
        self.decisions: dict[str, Decision] = {}
        self._kinds: dict[str, str] = {}
        self._plain_rounds: dict[str, int] = {}
        self._drafting: set[str] = set()
        self._lags: dict[str, float] = {}
        self._held = Held()
        self._looks: dict[str, tuple[tuple[int, int], int, list[str]]] = {}

    def wanted(self, requests: Sequence[Eligible]) -> dict[str, dict[str, int]]:
        """Return the instant proposers whose drafts may matter, and for which requests: proposer -> request -> longest.

        Args:
            requests: all that are decoding.
        """
        found: dict[str, dict[str, int]] = {}
        batch: RoundEstimate | None = None
        now = self.survival.version, len(requests)
        for request in requests:
            instant = [route for route in request.routes if route.instant]
            if not instant:
                continue
            then, left, names = self._looks.get(request.request_id, (None, 0, []))
            if then != now or left == 0:
                batch = batch or the_round(self.cost, requests)
                left, names = LOOK, [each.proposer for each in instant if self._worth_a_look(request, each, batch)]
            self._looks[request.request_id] = now, left - 1, names
            for route in instant:
                if route.proposer in names and request.most:
                    found.setdefault(route.proposer, {})[request.request_id] = request.most
        return found

    def decide(self, requests: Sequence[Eligible], glimpses: Glimpses | None = None) -> list[Decision]:
        """Return one decision per request, all of them together being one batch.

        Args:
            glimpses: drafts that those in `wanted` have.
        """
        if not requests:
            return []
        self.budget.earn()
        shown = any(map(len, (glimpses or {}).values()))
        now = self.survival.version, [(request.request_id, request.routes) for request in requests]
        if shown or self._held.left == 0 or self._held.state != now:
            plan = self._plan(requests, glimpses or {})
            self._lags = {request_id: offer.lag for request_id, offer in plan.offers.items() if offer.lag}
            decisions = [self._decision(request, plan) for request in requests]
            stays = not shown and all(decision.code in _STAYS for decision in decisions)
            self._held = Held(now, decisions, HOLD - 1 if stays else 0)
        else:
            decisions, self._held.left = self._held.decisions, self._held.left - 1
        for request, decision in zip(requests, decisions, strict=True):
            self._remember(request, decision)
        return decisions

    def learn(
        self, reports: Sequence[StepReport], grades: Sequence[int], watch: Stopwatch, seconds: float | None
    ) -> None:
        """Learn from a round.

        Args:
            reports: one for each request that was decoding and has a verdict.
            grades: of their drafts.
            seconds: of the round without its drafts; None when it read prompts as well.
        """
        if not reports:
            return
        size, context = len(reports), sum(report.context_len for report in reports)
        for name, taken in watch.draft_seconds.items():
            own = [report for report in reports if report.proposer == name]
            if any(report.drafted for report in own) or not self.cost.knows(name):
                asked = max((report.decision for report in own), default=0)
                self.cost.observe_draft(name, asked, taken, batch=len(own), lag=watch.lag[name])
            self.totals[name].add(own, taken)
            self._weigh(name, taken, watch.lag[name], own, size, context)
        if seconds is not None:
            rows = size + sum(report.drafted for report in reports)
            self.cost.observe_verify(rows, seconds, batch=size, context=context)
        for report, grade in zip(reports, grades, strict=True):
            self.observe(report, grade)
        self.book(reports)

    def observe(self, report: StepReport, grade: int = 0) -> None:
        """Learn what became of a draft of this grade; one that is shorter than was asked for, or empty, teaches too."""
        if report.decision == 0 or report.proposer == PLAIN:
            return
        request_id = report.request_id
        self.survival.observe(
            DraftSource(report.proposer, grade),
            request_id,
            report.decision,
            report.survived,
            kind=self._kinds.get(request_id, ""),
            gap=self._plain_rounds.pop(request_id, 0),
            empty=report.depth == 0,
        )

    def book(self, reports: Sequence[StepReport]) -> None:
        """Enter what a round's drafts gained or lost beside plain decoding, by what was emitted."""
        drafted = [report for report in reports if report.decision]
        if not drafted or any(report.reason_code not in _ADAPTED for report in drafted):
            return
        size, context = len(reports), sum(report.context_len for report in reports)
        asked = []
        for name in {report.proposer for report in drafted}:
            own = [report for report in drafted if report.proposer == name]
            lag = sum(self._lags.get(report.request_id, 0.0) for report in own)
            asked.append(AskedProposer(name, max(report.decision for report in own), len(own), lag))
        rows = size + sum(report.drafted for report in reports)
        seconds = round_seconds(self.cost, size, rows, asked, context=context)
        plain = round_seconds(self.cost, size, size, context=context)
        self.budget.book(sum(report.emitted for report in reports) / size - seconds / plain)

    def drop(self, request_id: str) -> None:
        """Forget a finished request."""
        self.survival.drop(request_id)
        self.decisions.pop(request_id, None)
        self._kinds.pop(request_id, None)
        self._plain_rounds.pop(request_id, None)
        self._drafting.discard(request_id)
        self._looks.pop(request_id, None)

    def keep(self, now: float) -> None:
        """Keep what was learned across restarts, now and then; `now` in seconds."""
        if self.learned is not None:
            self.learned.keep(now)

    def _weigh(self, name: str, taken: float, lag: int, reports: Sequence[StepReport], size: int, context: int) -> None:
        """Quarantine a proposer that costs more than it saves. Trials may, having a budget, and so may catching up."""
        tried = any(report.reason_code in (ReasonCode.PROBE, ReasonCode.TRIAL) for report in reports)
        if not reports or tried or lag >= LONG_LAG * len(reports):
            return
        account = Account(
            spent=taken,
            saved=sum(report.emitted - 1 for report in reports),
            plain_seconds=self.cost.verify_seconds(size, batch=size, context=context),
            batch_size=size,
            patience=max(report.depth * (report.reason_code is ReasonCode.FIXED) for report in reports),
        )
        self.quarantine.weigh(name, account)

    def _plan(self, requests: Sequence[Eligible], glimpses: Glimpses) -> Plan:
        batch = the_round(self.cost, requests)
        adaptive = [request for request in requests if request.adapts]
        found = (self._best_offer(request, batch, glimpses) for request in adaptive)
        offers = {offer.request_id: offer for offer in found if offer is not None}
        if self.cost.wants_plain:
            return Plan(batch, glimpses, offers, {}, measures=True)
        plan = self._lengths(batch, glimpses, offers)
        self._add_probes(adaptive, plan)
        return plan

    def _lengths(self, batch: RoundEstimate, glimpses: Glimpses, offers: Mapping[str, Offer]) -> Plan:
        """The best lengths by what is likely; else by hope, if that may be lost; in debt by what is nearly sure."""
        chosen = list(offers.values())
        nothing = Plan(batch, glimpses, offers, {})
        if not chosen:
            return nothing
        goes_on = any(request_id in self._drafting for request_id in offers)
        in_debt = self.budget.balance < 0.0
        # As a rule nothing is hoped for where nothing was drafted: one look will do.
        if not goes_on and not in_debt and batch.best_lengths(chosen, -HOPE)[1] <= batch.plain_rate:
            return nothing
        least = 0.0 if goes_on else MARGIN - 1.0
        for caution in (CAUTION,) if in_debt else (-HOPE, 0.0):
            lengths, rate = batch.best_lengths(chosen, caution)
            if rate <= batch.plain_rate * (1.0 + least):
                break
            if in_debt or batch.gain(offers, lengths) > least:
                return Plan(batch, glimpses, offers, lengths)
        if in_debt:
            return nothing
        lengths, rate = batch.best_lengths(chosen, -HOPE, TRIAL_LENGTH)
        if rate > batch.plain_rate * (1.0 + least) and lengths and self.budget.allows(-batch.gain(offers, lengths)):
            return Plan(batch, glimpses, offers, lengths, likely=False)
        return nothing

    def _worth_a_look(self, request: Eligible, route: Route, batch: RoundEstimate) -> bool:
        if request.fixed is not None:
            return len(request.routes) > 1
        if request.most == 0:
            return False
        if self.budget.probe_is_due(self._probe_loss(batch, route, 1), route.proposer):
            return True
        offers = (self._offer(request, route, grade, request.most) for grade in self.survival.grades(route.proposer))
        return any(batch.best_alone(offer, -CAUTION, len(offer.survival))[1] > batch.plain_rate for offer in offers)

    def _best_offer(self, request: Eligible, batch: RoundEstimate, glimpses: Glimpses) -> Offer | None:
        """The proposer that may bring most when this request alone drafts.

        Of those that are likely to pay, the one that may be best (upper confidence bound, Auer et al. 2002): what
        is little known gets its chance, and loses it when it turns out to be worse.
        """
        offers = [offer for route in request.routes if (offer := self._seen_offer(request, route, glimpses))]
        if len(offers) < 2:
            return offers[0] if offers else None
        paying = [offer for offer in offers if batch.best_alone(offer)[1] > batch.plain_rate]
        return max(paying or offers, key=lambda offer: batch.best_alone(offer, -HOPE)[1])

    def _seen_offer(self, request: Eligible, route: Route, glimpses: Glimpses) -> Offer | None:
        """None where nothing is offered, or nothing is known yet about what it takes."""
        return self._seen_draft(request, route, glimpses) if self.cost.knows(route.proposer) else None

    def _seen_draft(self, request: Eligible, route: Route, glimpses: Glimpses) -> Offer | None:
        """None where nothing is offered."""
        if not route.instant:
            return self._offer(request, route, 0, route.allowed(request.most))
        draft = glimpses.get((route.proposer, request.request_id), EMPTY_DRAFT)
        length = min(draft.depth, request.most)
        return self._offer(request, route, draft.grade, length) if length else None

    def _offer(self, request: Eligible, route: Route, grade: int, length: int) -> Offer:
        source = DraftSource(route.proposer, grade)
        survival, spread = self.survival.estimate(source, request.request_id, length, kind=request.kind)
        lag = request.lag.get(route.proposer, 0)
        if lag:
            lag_share = lag / max(request.expected / (1.0 + sum(survival)), 1.0)
            return Offer(request.request_id, route, survival, spread, grade, lag_share)
        return Offer(request.request_id, route, survival, spread, grade)

    def _add_probes(self, requests: Sequence[Eligible], plan: Plan) -> None:
        """The proposer, then the request, that was not tried for longest, if a probe is due."""
        if self.budget.balance <= 0.0 or (plan.lengths and not plan.likely):
            return
        untried = [
            (self.budget.tried.get(route.proposer, -1), -self._plain_rounds.get(request.request_id, 0), at, route)
            for at, request in enumerate(requests)
            for route in request.routes
            if not plan.uses(request, route)
        ]
        for last, _, at, route in sorted(untried, key=lambda entry: entry[:3]):
            request = requests[at]
            length = min(PROBE_LENGTH, plan.seen_length(request, route))
            if length and last >= 0 and self._probe_loss(plan.batch, route, length) > 1.0:
                length = 1
            if not length:
                continue
            again = self.survival.suspects(DraftSource(route.proposer), request.request_id)
            loss = 0.0 if again else self._given_up(request, plan, route, length)
            if self.budget.probe_is_due(loss, route.proposer):
                self.budget.probed(route.proposer, first=last < 0)
                plan.probes[request.request_id] = route, length
                self._fill_up([requests[entry[2]] for entry in untried if entry[3] == route], plan, route, length)
                return

    def _fill_up(self, requests: Sequence[Eligible], plan: Plan, route: Route, length: int) -> None:
        """Probe others as well, as long as that costs next to nothing: in a tile that is not full rows are free."""
        batch, rows, beside = plan.batch, length * route.branching, plan.rows
        limit = FILLING * batch.extra_seconds(route, length, 0.0, beside)
        without = batch.verify_seconds(beside)
        for request in requests:
            count = len(plan.probes) + (request.request_id not in plan.probes)
            draft = self.cost.draft_seconds(route.proposer, length, batch=count)
            if batch.verify_seconds(beside + count * rows) - without + draft > limit:
                return
            if request.request_id not in plan.lengths and plan.seen_length(request, route) >= length:
                plan.probes[request.request_id] = route, length

    def _probe_loss(self, batch: RoundEstimate, route: Route, length: int) -> float:
        """Plain steps that a probe adds to a round."""
        return batch.extra_seconds(route, length, 0.0) / batch.plain_seconds

    def _given_up(self, request: Eligible, plan: Plan, route: Route, length: int) -> float:
        """Plain steps that a probe is likely to lose: what it adds to a round beyond what it brings, and what another
        draft would have saved."""
        batch, request_id = plan.batch, request.request_id
        lag = request.lag.get(route.proposer, 0)
        extra = batch.extra_seconds(route, length, lag, plan.rows) / batch.plain_seconds
        survival, _ = self.survival.estimate(DraftSource(route.proposer), request_id, length, kind=request.kind)
        loss = max(extra - sum(survival) / batch.batch, LEAST_LOSS * extra)
        if request_id in plan.lengths:
            loss += sum(plan.offers[request_id].survival[: plan.lengths[request_id]]) / batch.batch
        return loss

    def _decision(self, request: Eligible, plan: Plan) -> Decision:
        request_id, first = request.request_id, request.routes[0]
        if first.proposer == PLAIN:
            return reasons.routed_plain(first)
        if request.fixed is not None:
            return self._fixed(request, plan)
        if plan.measures:
            return reasons.measure()
        if request_id in plan.probes:
            return reasons.probe(*plan.probes[request_id])
        if request_id in plan.lengths:
            words = reasons.pays if plan.likely else reasons.trial
            return words(plan.offers[request_id].route, plan.lengths[request_id])
        return self._no_draft(request, plan)

    def _fixed(self, request: Eligible, plan: Plan) -> Decision:
        """The length is given; a single route is asked in any case."""
        length, routes = min(request.fixed or 0, request.most), request.routes
        route = routes[0] if len(routes) == 1 else self._most_promising(request, length, plan.glimpses)
        return reasons.fixed(route, route.allowed(length))

    def _most_promising(self, request: Eligible, length: int, glimpses: Glimpses) -> Route:
        """The route of most tokens per second at this length, all hopes fulfilled; never timed, it costs nothing."""
        alone = RoundEstimate(self.cost, 1, 1, request.context)

        def promise(route: Route) -> float:
            offer = self._seen_draft(request, route, glimpses)
            if offer is None:
                return 0.0
            return alone.rate_alone(offer, offer.bound(-CAUTION), min(length, len(offer.survival)))

        return max(request.routes, key=promise)

    def _no_draft(self, request: Eligible, plan: Plan) -> Decision:
        offer = plan.offers.get(request.request_id)
        if offer is None:
            return reasons.nothing_offered(request.routes)
        if plan.batch.batch > 1 and self._pays_alone(request, offer):
            return reasons.load()
        return reasons.no_gain()

    def _pays_alone(self, request: Eligible, offer: Offer) -> bool:
        alone = RoundEstimate(self.cost, 1, 1, request.context)
        return alone.best_alone(offer, most=LOOKED_AT)[1] > alone.plain_rate

    def _remember(self, request: Eligible, decision: Decision) -> None:
        request_id = request.request_id
        self.decisions[request_id] = decision
        self._kinds[request_id] = request.kind
        if decision.depth == 0:
            self._plain_rounds[request_id] = self._plain_rounds.get(request_id, 0) + 1
        if decision.code is ReasonCode.PAYS:
            self._drafting.add(request_id)
        elif decision.code in (ReasonCode.NO_GAIN, ReasonCode.LOAD):
            self._drafting.discard(request_id)
