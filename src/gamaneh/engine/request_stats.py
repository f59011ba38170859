"""What speculation did for one request: sums over its rounds, by proposer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from gamaneh.core import StepReport
from gamaneh.metrics.collector import SpeculationStats


def _new_stats() -> defaultdict[str, SpeculationStats]:
    return defaultdict(SpeculationStats)


@dataclass(slots=True)
class RequestStats:
    """Sums over the rounds of one request, or of some together.

    Args:
        by_proposer: counts of the rounds in which each proposer drafted; plain rounds have their own name.
        rules: those that judged.
        round_seconds: wall time of the rounds, whole and not shared among the batch.
        plain_seconds: what as many tokens would have taken one by one in batches as large: rounds
            without a draft are their own measure, others count by the measured costs; None before
            those were measured.
    """

    by_proposer: dict[str, SpeculationStats] = field(default_factory=_new_stats)
    rules: set[str] = field(default_factory=set)
    round_seconds: float = 0.0
    plain_seconds: float | None = 0.0

    def add(self, report: StepReport, plain_step_seconds: float | None) -> None:
        """Count one round; `plain_step_seconds` is the measured cost of a plain step of its batch."""
        self.by_proposer[report.proposer].add(report)
        self.rules.add(report.rule)
        self.round_seconds += report.draft_seconds + report.verify_seconds
        step = plain_step_seconds if report.drafted else report.verify_seconds
        if self.plain_seconds is not None:
            self.plain_seconds = None if step is None else self.plain_seconds + report.emitted * step

    @property
    def estimated_speedup(self) -> float | None:
        """plain seconds / round seconds: estimated, not measured beside a plain run; None if nothing is known."""
        if self.plain_seconds is None or self.round_seconds == 0.0:
            return None
        return self.plain_seconds / self.round_seconds

    def accepted_histogram(self) -> list[int]:
        """Element i counts the drafts of which exactly i candidates were accepted."""
        return accepted_histogram(self.by_proposer.values())


def accepted_histogram(stats: Iterable[SpeculationStats]) -> list[int]:
    """Element i counts the drafts of which exactly i candidates were accepted."""
    at_least: Counter[int] = Counter()
    for each in stats:
        at_least[0] += each.drafts
        at_least.update({length + 1: count for length, count in each.accepted_at.items()})
    if not at_least[0]:
        return []
    return [at_least[length] - at_least[length + 1] for length in range(max(at_least) + 1)]
