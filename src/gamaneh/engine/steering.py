"""Router, controller and fallback put to work: what each request drafts in a round, and what is learned from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gamaneh.control.controller import Controller
from gamaneh.control.cost import CostModel
from gamaneh.control.fallback import LONG_LAG, Account, Fault, Ledger, Quarantine
from gamaneh.control.objective import Eligible
from gamaneh.control.router import Features, Router
from gamaneh.control.snapshot import SpeculationSnapshot, Totals, take_snapshot
from gamaneh.control.survival import SurvivalTracker
from gamaneh.core import Backend, Decision, Draft, FinishReason, Needs, Proposer, ReasonCode, StepReport
from gamaneh.engine.drafting import Clock, Consulted, Drafters
from gamaneh.engine.learned import Learned
from gamaneh.engine.sequence import SequenceState
from gamaneh.engine.turn import Turn


class Steering:
    """Decides before a round and learns after it.

    Attributes:
        leaves_out_slow: a proposer that takes more time than it saves goes into quarantine. Measurements
            that are to find out how slow it is switch that off.
        learned: where what was learned is kept across restarts; None keeps nothing.
    """

    def __init__(self, target: Backend, proposers: Mapping[str, Proposer], vocab_size: int, clock: Clock) -> None:
        self.leaves_out_slow = True
        self.learned: Learned | None = None
        self.quarantine = Quarantine()
        self.cost = CostModel(target.computed_rows)
        self.controller = Controller(SurvivalTracker(), self.cost)
        self._needs: dict[str, Needs] = {}
        self._ledgers: dict[str, Ledger] = {}
        self._totals: dict[str, Totals] = {}
        self.router = Router(self.quarantine, self._needs)
        self.drafting = Drafters(proposers, self.quarantine, vocab_size, clock)
        for name, proposer in proposers.items():
            self.register(name, proposer)

    def register(self, name: str, proposer: Proposer) -> None:
        """Route requests to a proposer and keep an account of it."""
        self._needs[name] = proposer.needs
        self.controller.survival.expect(name, proposer.needs.expected_survival)
        self._ledgers[name], self._totals[name] = Ledger(), Totals()

    def decide(self, sequences: Sequence[SequenceState]) -> list[Decision]:
        """One decision per request that is decoding."""
        self.quarantine.tick()
        by_id = {sequence.request_id: sequence for sequence in sequences}

        def peek(proposer: str, request_ids: Sequence[str], max_depth: int) -> Mapping[str, Draft]:
            return self.drafting.peek(proposer, [by_id[request_id] for request_id in request_ids], max_depth)

        return self.controller.decide([self._eligible(sequence) for sequence in sequences], peek)

    def observe(self, turns: Sequence[Turn], reports: Sequence[StepReport], seconds: float | None) -> None:
        """Learn from a round.

        Args:
            turns: those that were decoding and have a verdict.
            reports: one per turn, in their order.
            seconds: of the round without its drafts; None when it read prompts as well.
        """
        if not reports:
            return
        size, context = len(reports), sum(report.context_len for report in reports)
        for name, consulted in self.drafting.consulted.items():
            own = [report for report in reports if report.proposer == name]
            if any(report.drafted for report in own) or not self.cost.knows(name):
                asked = max((report.decision for report in own), default=0)
                self.cost.observe_draft(name, asked, consulted.seconds, batch=consulted.requests, lag=consulted.lag)
            self._totals[name].add(own, consulted.seconds)
            self._weigh(name, consulted, own, size, context)
        if seconds is not None:
            rows = size + sum(report.drafted for report in reports)
            self.cost.observe_verify(rows, seconds, batch=size, context=context)
        for turn, report in zip(turns, reports, strict=True):
            self.controller.observe(report, turn.draft.grade)
        self.controller.book(reports)

    def snapshot(self) -> SpeculationSnapshot:
        """What is going on, in words and numbers; to be taken between two steps."""
        memory = {name: proposer.memory_bytes() for name, proposer in self.drafting.proposers.items()}
        about = {name: needs.about for name, needs in self._needs.items()}
        return take_snapshot(self.controller, self.quarantine, self._totals, memory, about)

    def finished(self, sequence: SequenceState) -> None:
        """Forget a request, and remember how long its output was."""
        self.router.finished(sequence.num_emitted)
        self.controller.drop(sequence.request_id)
        if self.learned is not None:
            self.learned.keep()
        complete = sequence.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        (self.drafting.end if complete else self.drafting.forget)(sequence.request_id)

    def _eligible(self, sequence: SequenceState) -> Eligible:
        options, features = sequence.drafting, _features(sequence)
        return Eligible(
            sequence.request_id,
            self.router.routes(options.proposer, features, self.drafting.unfit(sequence.request_id)),
            min(options.max_draft_length, sequence.remaining - 1),
            options.draft_length,
            features.kind,
            sequence.cached_len,
            self.drafting.lag(sequence),
            self.router.expected_tokens(features),
        )

    def _weigh(self, name: str, consulted: Consulted, reports: Sequence[StepReport], size: int, context: int) -> None:
        """Quarantine a proposer that costs more than it saves. Trials may, having a budget, and so may catching up."""
        tried = any(report.reason_code in (ReasonCode.PROBE, ReasonCode.TRIAL) for report in reports)
        if not self.leaves_out_slow or not reports or tried or consulted.lag >= LONG_LAG * len(reports):
            return
        account = Account(
            spent=consulted.seconds,
            saved=sum(report.emitted - 1 for report in reports),
            plain_seconds=self.cost.verify_seconds(size, batch=size, context=context),
            batch_size=size,
            patience=max(report.depth * (report.reason_code is ReasonCode.FIXED) for report in reports),
        )
        if self._ledgers[name].add(account):
            self.quarantine.report(name, "it takes more time than it saves", Fault.SLOW)


def _features(sequence: SequenceState) -> Features:
    return Features(
        prompt_len=sequence.prompt_len,
        emitted=sequence.num_emitted,
        limit=sequence.limit - sequence.prompt_len,
        greedy=sequence.params.greedy,
        grammar=sequence.mask is not None,
        trees=sequence.rule.trees,
        repeatable=sequence.params.seed is not None and sequence.rule.reads_probs,
    )
