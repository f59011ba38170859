"""Counts first, ratios last."""

from __future__ import annotations

import pytest

from gamaneh.core import ReasonCode, StepReport
from gamaneh.metrics.collector import SpeculationStats


def report(drafted: int, accepted: int, batch_size: int = 1, reason: str = "why") -> StepReport:
    proposer = "drafter" if drafted else "none"
    counts = (drafted, drafted, accepted, accepted + 1, batch_size, 9)
    return StepReport("r", proposer, "match", *counts, 2.0, 4.0, 4, reason, ReasonCode.FIXED)


def stats_of(*reports: StepReport) -> SpeculationStats:
    stats = SpeculationStats()
    for one in reports:
        stats.add(one)
    return stats


def test_rates_are_ratios_of_sums() -> None:
    stats = stats_of(report(4, 4), report(2, 1), report(0, 0))
    assert stats.acceptance_rate == pytest.approx(5 / 6)
    assert stats.tokens_per_round == pytest.approx(8 / 3)
    assert stats.mean_accepted_length == pytest.approx(5 / 3)


def test_survival_counts_the_drafts_that_reached_so_far() -> None:
    assert stats_of(report(3, 3), report(3, 1), report(1, 0)).survival() == pytest.approx([2 / 3, 1 / 2, 1 / 2])


def test_seconds_of_a_batch_are_counted_once() -> None:
    stats = stats_of(*[report(4, 4, batch_size=4) for _ in range(4)])
    assert stats.verify_seconds == pytest.approx(4.0)
    assert stats.draft_seconds == pytest.approx(2.0)


def test_nothing_measured_gives_zeros() -> None:
    stats = stats_of()
    assert (stats.acceptance_rate, stats.tokens_per_round, stats.mean_accepted_length, stats.survival()) == (
        0,
        0,
        0,
        [],
    )


def test_decisions_are_counted_by_proposer_and_reason() -> None:
    stats = stats_of(report(4, 4, reason="pays"), report(4, 4, reason="pays"), report(0, 0, reason="load"))
    counts = {(why.proposer, why.reason): count for why, count in stats.decisions.items()}
    assert counts == {("drafter", "pays"): 2, ("none", "load"): 1}
