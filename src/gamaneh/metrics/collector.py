"""Metrics collector: sums of step reports; one place divides."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from gamaneh.core import ReasonCode, ReasonDetails, StepReport


class Why(NamedTuple):
    """What drafted in a round and why: in words, and what those are made of."""

    proposer: str
    reason: str
    code: ReasonCode
    details: ReasonDetails


@dataclass(slots=True)
class SpeculationStats:
    """Counts over any number of reports.

    Args:
        rounds: verifications of one request; drafts: those with a draft.
        accepted, emitted: as in `StepReport`.
        accepted_at: accepted_at[i] counts drafts whose first i + 1 candidates were all accepted and emitted.
        survived_at: the same with candidates accepted behind the end of an output.
        offered_at: offered_at[i] counts drafts with at least i + 1 candidates on their longest path.
        decisions: rounds by what drafted and why.
        drafted_by, accepted_by: candidates by the proposer that they came from.
    """

    rounds: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    accepted_at: Counter[int] = field(default_factory=Counter)
    survived_at: Counter[int] = field(default_factory=Counter)
    offered_at: Counter[int] = field(default_factory=Counter)
    decisions: Counter[Why] = field(default_factory=Counter)
    drafted_by: Counter[str] = field(default_factory=Counter)
    accepted_by: Counter[str] = field(default_factory=Counter)

    def add(self, report: StepReport) -> None:
        """Count one report; seconds are shared among the batch, so that sums are wall time."""
        self.rounds += 1
        self.drafts += report.drafted > 0
        self.drafted += report.drafted
        self.accepted += report.accepted
        self.emitted += report.emitted
        self.draft_seconds += report.draft_seconds / report.batch_size
        self.verify_seconds += report.verify_seconds / report.batch_size
        self.accepted_at.update(range(report.accepted))
        self.survived_at.update(range(report.survived))
        self.offered_at.update(range(report.depth))
        self.decisions[Why(report.proposer, report.reason, report.reason_code, report.details)] += 1
        for share in report.by_source:
            self.drafted_by[share.proposer] += share.drafted
            self.accepted_by[share.proposer] += share.accepted

    @property
    def acceptance_rate(self) -> float:
        """accepted / drafted; 0 without drafts."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_round(self) -> float:
        """emitted / rounds; 0 without rounds."""
        return self.emitted / self.rounds if self.rounds else 0.0

    @property
    def mean_accepted_length(self) -> float:
        """accepted / rounds, rounds without a draft included; 0 without rounds."""
        return self.accepted / self.rounds if self.rounds else 0.0

    def survival(self) -> list[float]:
        """s_i: share of drafts with at least i candidates whose first i were all accepted."""
        return [self.survived_at[at] / self.offered_at[at] for at in sorted(self.offered_at)]
