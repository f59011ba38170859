"""Sums over the rounds of one request."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gamaneh.core import PLAIN, ReasonCode, StepReport
from gamaneh.engine.request_stats import RequestStats


def report(accepted: int = 0, depth: int = 0, proposer: str = "lookup") -> StepReport:
    return StepReport(
        request_id="r",
        proposer=proposer,
        rule="match",
        drafted=depth,
        depth=depth,
        accepted=accepted,
        emitted=accepted + 1,
        batch_size=2,
        context_len=9,
        draft_seconds=0.1,
        verify_seconds=0.4,
        decision=depth,
        reason="it pays",
        reason_code=ReasonCode.PAYS,
    )


def stats_of(reports: Iterable[StepReport], plain_step_seconds: float | None = 0.4) -> RequestStats:
    stats = RequestStats()
    for each in reports:
        stats.add(each, plain_step_seconds)
    return stats


def test_the_histogram_counts_drafts_by_what_was_accepted_of_them() -> None:
    rounds = [report(0, 4), report(0, 4), report(2, 4), report(4, 4), report(proposer=PLAIN)]
    assert stats_of(rounds).accepted_histogram() == [2, 0, 1, 0, 1]


def test_without_drafts_there_is_no_histogram() -> None:
    assert stats_of([report(proposer=PLAIN)]).accepted_histogram() == []


def test_rounds_are_counted_by_proposer() -> None:
    stats = stats_of([report(2, 4), report(1, 4), report(proposer=PLAIN)])
    rounds = {name: (each.rounds, each.emitted) for name, each in stats.by_proposer.items()}
    assert rounds == {"lookup": (2, 5), PLAIN: (1, 1)}


def test_the_speedup_is_estimated_against_a_plain_step_per_token() -> None:
    assert stats_of([report(3, 4), report(0, 4)]).estimated_speedup == pytest.approx(5 * 0.4 / (2 * 0.5))


def test_rounds_without_a_draft_are_their_own_measure() -> None:
    stats = stats_of([report(proposer=PLAIN)], plain_step_seconds=9.9)
    assert stats.plain_seconds == pytest.approx(0.4)


def test_without_measured_costs_no_speedup_is_claimed() -> None:
    assert stats_of([report(3, 4)], plain_step_seconds=None).estimated_speedup is None
