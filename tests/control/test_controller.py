"""The controller drafts where drafting pays by measurement, and says why."""

from __future__ import annotations

import pytest

from gamaneh.control.acceptance import AcceptanceTracker
from gamaneh.control.controller import PROBE_DEPTH, PROBE_EVERY, Candidate, Controller
from gamaneh.control.cost import CostModel
from gamaneh.core import PLAIN, ReasonCode, StepReport

PAYS = ReasonCode.PAYS


def controller_with(verify: dict[int, float], draft_per_token: float = 0.0) -> Controller:
    cost = CostModel()
    for rows, seconds in verify.items():
        cost.observe_verify(rows, seconds)
    for depth in (1, 8):
        cost.observe_draft("drafter", depth, depth * draft_per_token)
    return Controller(AcceptanceTracker(), cost)


FLAT = {1: 1.0, 16: 1.0, 17: 1.5, 32: 1.5}
LINEAR = {1: 1.0, 32: 32.0}


def candidate(
    request_id: str = "r", max_depth: int = 15, fixed: int | None = None, proposer: str = "drafter"
) -> Candidate:
    return Candidate(request_id, proposer, max_depth, fixed, "drafter was asked for", PAYS)


def teach(controller: Controller, accepted: int, depth: int = 8, rounds: int = 60, request_id: str = "r") -> None:
    for _ in range(rounds):
        controller.observe(
            StepReport(
                request_id, "drafter", "match", depth, depth, accepted, accepted + 1, 1, 10, 0, 0, depth, "", PAYS
            )
        )


def depth_of(controller: Controller, **options) -> int:
    return controller.decide([candidate(**options)])[0].depth


def test_free_drafts_that_are_accepted_go_as_far_as_a_flat_verify_allows() -> None:
    controller = controller_with(FLAT)
    teach(controller, accepted=8)
    assert depth_of(controller) == 15


def test_drafts_that_are_refused_are_not_made() -> None:
    controller = controller_with(FLAT, draft_per_token=0.2)
    teach(controller, accepted=0)
    decision = controller.decide([candidate()])[0]
    assert decision.depth == 0
    assert decision.proposer == PLAIN
    assert "plain decoding is faster" in decision.reason


def test_a_slow_drafter_is_not_used_even_when_it_is_right() -> None:
    controller = controller_with(FLAT, draft_per_token=1.2)
    teach(controller, accepted=8)
    assert depth_of(controller) == 0


def test_a_verify_that_costs_as_much_as_plain_steps_is_not_worth_it() -> None:
    controller = controller_with(LINEAR)
    teach(controller, accepted=8)
    assert depth_of(controller) == 0


def test_the_draft_length_is_the_best_by_theory() -> None:
    """Independent acceptance of 0.8 and a draft token at a tenth of a verify: 6 (THEORY, best k)."""
    cost = CostModel()
    cost.observe_verify(1, 1.0)
    for depth in (1, 8):
        cost.observe_draft("drafter", depth, depth * 0.1)
    controller = Controller(AcceptanceTracker(), cost)
    controller.acceptance.survival = lambda proposer, request_id, depth: [0.8**i for i in range(1, depth + 1)]
    assert depth_of(controller) == 6


def test_a_full_batch_drafts_less_than_a_single_request() -> None:
    controller = controller_with({1: 1.0, 16: 1.0, 17: 2.5, 32: 4.0})
    teach(controller, accepted=2, request_id="r0")
    alone = depth_of(controller, request_id="r0")
    batch = controller.decide([candidate(f"r{at}") for at in range(12)])
    assert sum(decision.depth for decision in batch) <= 4
    assert alone > 4


def test_the_request_that_is_drafted_best_gets_the_rows() -> None:
    controller = controller_with({1: 1.0, 8: 1.0, 9: 3.0, 32: 12.0})
    teach(controller, accepted=8, request_id="good")
    teach(controller, accepted=0, request_id="bad")
    good, bad = controller.decide([candidate("good"), candidate("bad")])
    assert good.depth > bad.depth


def test_a_fixed_draft_length_is_kept_within_the_limits() -> None:
    controller = controller_with(LINEAR)
    assert depth_of(controller, fixed=5) == 5
    assert depth_of(controller, fixed=5, max_depth=3) == 3
    assert depth_of(controller, fixed=5, max_depth=0) == 0


def test_off_is_probed_at_a_bounded_cost_and_comes_back() -> None:
    controller = controller_with(FLAT, draft_per_token=0.2)
    teach(controller, accepted=0)
    depths = [depth_of(controller) for _ in range(4 * PROBE_EVERY)]
    assert sum(depths) == 4 * PROBE_DEPTH
    teach(controller, accepted=8, rounds=200)
    assert depth_of(controller) > PROBE_DEPTH


def test_a_finished_request_is_forgotten() -> None:
    controller = controller_with(FLAT)
    teach(controller, accepted=8)
    controller.drop("r")
    assert controller.acceptance._requests == {}


class TestAcceptance:
    def test_survival_approaches_what_was_measured(self) -> None:
        tracker = AcceptanceTracker()
        for at in range(400):
            tracker.observe("drafter", "r", 4, [0, 2, 4, 4][at % 4])
        assert tracker.survival("drafter", "r", 4) == pytest.approx([0.75, 0.75, 0.5, 0.5], abs=0.08)

    def test_positions_behind_the_first_refusal_say_nothing(self) -> None:
        tracker = AcceptanceTracker()
        for _ in range(100):
            tracker.observe("drafter", "r", 4, 0)
        first, second = tracker.survival("drafter", "r", 2)
        assert first < 0.05
        assert second / first == pytest.approx(first, abs=0.75)

    def test_a_new_request_starts_from_the_pool(self) -> None:
        tracker = AcceptanceTracker()
        for _ in range(200):
            tracker.observe("drafter", "old", 2, 2)
        assert tracker.survival("drafter", "new", 2)[1] > 0.9

    def test_empty_drafts_say_nothing(self) -> None:
        tracker = AcceptanceTracker()
        before = tracker.survival("drafter", "r", 3)
        tracker.observe("drafter", "r", 0, 0)
        assert tracker.survival("drafter", "r", 3) == before


class TestCost:
    def test_between_measured_sizes_lies_a_straight_line(self) -> None:
        cost = CostModel()
        cost.observe_verify(2, 1.0)
        cost.observe_verify(6, 3.0)
        assert cost.round_seconds(4, {}) == pytest.approx(2.0)
        assert cost.round_seconds(8, {}) == pytest.approx(4.0)
        assert cost.round_seconds(1, {}) == pytest.approx(1.0)

    def test_measurements_of_one_size_are_averaged(self) -> None:
        cost = CostModel()
        for seconds in [1.0] + [2.0] * 100:
            cost.observe_verify(1, seconds)
        assert cost.round_seconds(1, {}) == pytest.approx(2.0, abs=0.01)

    def test_sizes_that_compute_the_same_rows_are_measured_as_one(self) -> None:
        cost = CostModel(lambda rows: -(-rows // 16) * 16)
        cost.observe_verify(3, 1.0)
        assert cost.round_seconds(16, {}) == 1.0

    def test_draft_seconds_add_up_over_proposers(self) -> None:
        cost = CostModel()
        cost.observe_verify(1, 1.0)
        cost.observe_draft("one", 1, 0.5)
        cost.observe_draft("two", 2, 0.25)
        assert cost.round_seconds(1, {"one": 1, "two": 2}) == pytest.approx(1.75)
