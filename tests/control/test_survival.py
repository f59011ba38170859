"""Survival is what was measured, drawn from the general to the particular, and knows how sure it is."""

from __future__ import annotations

import pytest

from gamaneh.control.survival import CAUTION, DraftSource, SurvivalTracker

DRAFTER = DraftSource("drafter")


def taught(
    accepted: int, *, length: int = 4, rounds: int = 200, request_id: str = "old", kind: str = ""
) -> SurvivalTracker:
    tracker = SurvivalTracker()
    for _ in range(rounds):
        tracker.observe(DRAFTER, request_id, length, accepted, kind=kind)
    return tracker


def test_survival_approaches_what_was_measured() -> None:
    tracker = SurvivalTracker()
    for at in range(400):
        tracker.observe(DRAFTER, f"r{at}", 4, [0, 2, 4, 4][at % 4])
    assert tracker.survival(DRAFTER, "new", 4) == pytest.approx([0.75, 0.75, 0.5, 0.5], abs=0.05)


def test_positions_behind_the_first_refusal_say_nothing() -> None:
    tracker = taught(0)
    survival = tracker.survival(DRAFTER, "old", 2)
    assert survival[0] < 0.01
    assert tracker._sources[DRAFTER].reached[1] == 0


def test_a_new_request_starts_from_the_pool() -> None:
    assert taught(4).survival(DRAFTER, "new", 2)[1] > 0.9


def test_kinds_of_requests_are_told_apart() -> None:
    tracker = SurvivalTracker()
    for _ in range(100):
        tracker.observe(DRAFTER, "a", 2, 2, kind="greedy")
        tracker.observe(DRAFTER, "b", 2, 0, kind="sampled")
    greedy, sampled = (tracker.survival(DRAFTER, "new", 1, kind=kind)[0] for kind in ("greedy", "sampled"))
    assert greedy > 0.9
    assert sampled < 0.1


def test_a_request_departs_from_its_pool() -> None:
    tracker = taught(0)
    for _ in range(20):
        tracker.observe(DRAFTER, "good", 4, 4)
    assert tracker.survival(DRAFTER, "good", 1)[0] > 0.6
    assert tracker.survival(DRAFTER, "new", 1)[0] < 0.4


def test_grades_are_told_apart() -> None:
    tracker = taught(0)
    for _ in range(50):
        tracker.observe(DraftSource("drafter", 1), "old", 4, 4)
    assert tracker.survival(DRAFTER, "old", 1)[0] < 0.1
    assert tracker.survival(DraftSource("drafter", 1), "old", 1)[0] > 0.9
    assert tracker.grades("drafter") == [0, 1]


def test_a_grade_that_was_not_seen_starts_from_those_below() -> None:
    tracker = taught(4)
    assert tracker.survival(DraftSource("drafter", 2), "new", 1)[0] > 0.9
    assert tracker.survival(DraftSource("other", 2), "new", 1)[0] == pytest.approx(0.5)


def test_empty_drafts_say_nothing() -> None:
    tracker = SurvivalTracker()
    before = tracker.survival(DRAFTER, "r", 3)
    tracker.observe(DRAFTER, "r", 0, 0)
    assert tracker.survival(DRAFTER, "r", 3) == before


@pytest.mark.parametrize("accepted", [0, 2, 4])
def test_the_lower_bound_closes_in_on_the_estimate(accepted: int) -> None:
    gaps = []
    for rounds in (1, 4, 40):
        tracker = taught(accepted, rounds=rounds)
        estimate = tracker.survival(DRAFTER, "old", 4)
        bound = tracker.survival(DRAFTER, "old", 4, caution=CAUTION)
        assert all(low < mean for low, mean in zip(bound, estimate, strict=False))
        gaps.append(estimate[0] - bound[0])
    assert gaps == sorted(gaps, reverse=True)


def test_survival_never_rises_along_a_path() -> None:
    tracker = SurvivalTracker()
    for at in range(50):
        tracker.observe(DRAFTER, "r", 8, at % 9)
    survival = tracker.survival(DRAFTER, "r", 12, caution=CAUTION)
    assert survival == sorted(survival, reverse=True)


def test_what_a_request_did_long_ago_counts_less() -> None:
    recent, old = taught(0, rounds=20), taught(0, rounds=20)
    recent.observe(DRAFTER, "old", 4, 4, gap=0)
    old.observe(DRAFTER, "old", 4, 4, gap=50)
    assert old.survival(DRAFTER, "old", 1)[0] > 1.5 * recent.survival(DRAFTER, "old", 1)[0]


def test_negligible_positions_are_left_out() -> None:
    assert len(taught(0).survival(DRAFTER, "old", 100)) < 5


def test_what_was_measured_beforehand_is_where_survival_begins() -> None:
    tracker = SurvivalTracker()
    tracker.expect("drafter", [0.6, 0.3])
    assert tracker.survival(DRAFTER, "new", 3) == pytest.approx([0.6, 0.3, 0.15])
    assert tracker.survival(DraftSource("other"), "new", 1) == [0.5]


@pytest.mark.parametrize(("expected", "accepted", "seen"), [(0.9, 0, 0.0), (0.0, 4, 1.0)])
def test_what_is_seen_outweighs_what_was_measured_beforehand(expected: float, accepted: int, seen: float) -> None:
    tracker = taught(accepted)
    tracker.expect("drafter", [expected] * 4)
    assert tracker.survival(DRAFTER, "new", 1)[0] == pytest.approx(seen, abs=0.1)
