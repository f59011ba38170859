"""The controller drafts where drafting pays by measurement, and says why."""

from __future__ import annotations

import pytest

from gamaneh.control.budget import GRANT, INCOME
from gamaneh.control.controller import HOLD, PROBE_LENGTH, Controller
from gamaneh.control.cost import CostModel
from gamaneh.control.router import Eligible, Route
from gamaneh.control.survival import SurvivalTracker
from gamaneh.core import PLAIN, Draft, ReasonCode, StepReport

PAYS = ReasonCode.PAYS
FLAT = {1: 1.0, 16: 1.0, 17: 1.5, 32: 1.5}
LINEAR = {1: 1.0, 32: 32.0}
DRAFTER = Route("drafter", "drafter was asked for", PAYS)
COPIER = Route("copier", "copier was asked for", PAYS, instant=True)


def controller_with(verify: dict[int, float], draft_per_token: float = 1e-9, copier: float = 1e-9) -> Controller:
    cost = CostModel()
    for rows, seconds in verify.items():
        cost.anchor_verify(rows, seconds)
    for depth in (1, 8):
        cost.anchor_draft("drafter", depth, depth * draft_per_token)
        cost.anchor_draft("copier", depth, depth * copier)
    cost.observe_verify(1, cost.verify_seconds(1))
    controller = Controller(SurvivalTracker(), cost)
    controller.budget.tried = {"drafter": 0, "copier": 0}
    return controller


def eligible(
    request_id: str = "r", most: int = 15, fixed: int | None = None, routes: tuple[Route, ...] = (DRAFTER,), **more
) -> Eligible:
    return Eligible(request_id, routes, most, fixed, **more)


def report(accepted: int, depth: int = 8, request_id: str = "r", proposer: str = "drafter") -> StepReport:
    counts = (depth, depth, accepted, accepted + 1, 1, 10)
    return StepReport(request_id, proposer, "match", *counts, 0, 0, depth, "", PAYS)


def teach(
    controller: Controller, accepted: int, *, rounds: int = 60, request_id: str = "r", proposer: str = "drafter"
) -> None:
    for _ in range(rounds):
        controller.observe(report(accepted, request_id=request_id, proposer=proposer))


def length_of(controller: Controller, **options) -> int:
    return controller.decide([eligible(**options)])[0].depth


def sees(**drafts: Draft):
    """Glimpses of the copier's drafts, by request."""
    return {("copier", name): draft for name, draft in drafts.items()}


class TestDraftLength:
    def test_free_drafts_that_are_accepted_go_as_far_as_a_flat_verify_allows(self) -> None:
        controller = controller_with(FLAT)
        teach(controller, accepted=8)
        assert length_of(controller) == 15

    def test_the_draft_length_is_the_best_by_theory(self) -> None:
        """Independent acceptance of 0.8 and a draft token at a tenth of a verify: 6 (THEORY, best k)."""
        controller = controller_with({1: 1.0}, draft_per_token=0.1)
        controller.survival.estimate = lambda *_, **__: ([0.8**i for i in range(1, 16)], [0.0] * 15)
        length_of(controller)
        assert length_of(controller) == 6

    @pytest.mark.parametrize(("expected", "drafts"), [((), False), ((0.7, 0.5), True)])
    def test_one_refusal_ends_what_is_unknown_but_not_what_was_measured(
        self, expected: tuple[float, ...], drafts: bool
    ) -> None:
        controller = controller_with(FLAT, draft_per_token=0.3)
        controller.survival.expect("drafter", expected)
        teach(controller, accepted=0, rounds=1)
        assert (length_of(controller) > 0) is drafts

    def test_drafts_that_are_refused_are_not_made(self) -> None:
        controller = controller_with(FLAT, draft_per_token=0.2)
        teach(controller, accepted=0)
        decision = controller.decide([eligible()])[0]
        assert (decision.depth, decision.proposer, decision.code) == (0, PLAIN, ReasonCode.NO_GAIN)
        assert "plain decoding is faster" in decision.reason

    def test_a_slow_drafter_is_not_used_even_when_it_is_right(self) -> None:
        controller = controller_with(FLAT, draft_per_token=1.2)
        teach(controller, accepted=8)
        assert length_of(controller) == 0

    def test_a_verify_that_costs_as_much_as_plain_steps_is_not_worth_it(self) -> None:
        controller = controller_with(LINEAR)
        teach(controller, accepted=8)
        assert length_of(controller) == 0

    def test_a_proposer_whose_drafts_were_never_timed_is_tried_with_a_short_one(self) -> None:
        controller = Controller(SurvivalTracker(), CostModel())
        controller.cost.observe_verify(1, 1.0)
        decision = controller.decide([eligible()])[0]
        assert (decision.depth, decision.code) == (PROBE_LENGTH, ReasonCode.PROBE)

    @pytest.mark.parametrize(("limit", "depth"), [(15, 5), (3, 3), (0, 0)])
    def test_a_fixed_draft_length_is_kept_within_the_limits(self, limit: int, depth: int) -> None:
        assert length_of(controller_with(LINEAR), fixed=5, most=limit) == depth

    def test_a_request_that_asks_for_plain_decoding_gets_it(self) -> None:
        route = Route(PLAIN, "plain decoding was asked for", ReasonCode.ASKED_PLAIN)
        decision = controller_with(FLAT).decide([eligible(routes=(route,))])[0]
        assert (decision.depth, decision.code) == (0, ReasonCode.ASKED_PLAIN)

    def test_catching_up_has_to_pay_within_what_is_left_of_the_request(self) -> None:
        controller = controller_with({1: 1.0}, draft_per_token=0.1)
        for _ in range(200):
            controller.cost.observe_draft("drafter", 1, 0.1)
            controller.cost.observe_draft("drafter", 1, 10.1, lag=1024)
        teach(controller, accepted=8)
        lag = {"drafter": 1024}
        assert length_of(controller, lag=lag, expected=500.0, most=3) > 0
        assert length_of(controller, lag=lag, expected=4.0, most=3) == 0


class TestBatch:
    def test_a_full_batch_drafts_less_than_a_single_request_and_says_that_it_is_the_load(self) -> None:
        controller = controller_with({1: 1.0, 16: 1.0, 17: 2.5, 32: 4.0})
        teach(controller, accepted=2, request_id="r0")
        alone = length_of(controller, request_id="r0")
        batch = controller.decide([eligible(f"r{at}") for at in range(12)])
        assert sum(decision.depth for decision in batch) <= 4
        assert alone > 2
        assert {decision.code for decision in batch if decision.depth == 0} == {ReasonCode.LOAD}

    def test_the_request_that_is_drafted_best_gets_the_rows(self) -> None:
        controller = controller_with({1: 1.0, 8: 1.0, 9: 3.0, 32: 12.0})
        teach(controller, accepted=8, request_id="good")
        teach(controller, accepted=0, request_id="bad")
        good, bad = controller.decide([eligible("good"), eligible("bad")])
        assert good.depth > bad.depth

    def test_a_dear_proposer_does_not_keep_a_cheap_one_from_drafting(self) -> None:
        controller = controller_with(FLAT, draft_per_token=3.0)
        teach(controller, accepted=8, request_id="dear")
        teach(controller, accepted=4, request_id="cheap", proposer="copier")
        look = sees(cheap=Draft.chain(range(8)))
        dear, cheap = controller.decide([eligible("dear"), eligible("cheap", routes=(COPIER,))], look)
        assert dear.depth == 0
        assert cheap.depth >= 4

    def test_rows_of_fixed_drafts_are_counted(self) -> None:
        controller = controller_with({1: 1.0, 8: 1.0, 9: 9.0, 32: 30.0})
        teach(controller, accepted=8)
        adaptive, fixed = controller.decide([eligible(), eligible("fixed", fixed=6)])
        assert adaptive.depth == 0
        assert fixed.depth == 6


class TestRoutes:
    AUTO = (COPIER, DRAFTER)

    def taught(self) -> Controller:
        controller = controller_with(FLAT, draft_per_token=0.1)
        teach(controller, accepted=3)
        teach(controller, accepted=8, proposer="copier")
        return controller

    def test_a_copy_is_used_where_there_is_one(self) -> None:
        decision = self.taught().decide([eligible(routes=self.AUTO)], sees(r=Draft.chain(range(12))))[0]
        assert decision.proposer == "copier"
        assert decision.depth >= 8

    def test_the_draft_model_is_used_where_there_is_nothing_to_copy(self) -> None:
        decision = self.taught().decide([eligible(routes=self.AUTO)], sees())[0]
        assert decision.proposer == "drafter"

    def test_a_copy_that_is_shorter_than_what_a_model_would_bring_is_passed_over(self) -> None:
        decision = self.taught().decide([eligible(routes=self.AUTO)], sees(r=Draft.chain([1])))[0]
        assert decision.proposer == "drafter"

    def test_grades_are_told_apart(self) -> None:
        controller = controller_with(FLAT, draft_per_token=0.1)
        teach(controller, accepted=3)
        for _ in range(60):
            controller.observe(report(0, proposer="copier"), grade=0)
            controller.observe(report(8, proposer="copier"), grade=2)
        short = Draft(tuple(range(9)), tuple(range(-1, 8)), grade=0)
        long = Draft(tuple(range(9)), tuple(range(-1, 8)), grade=2)
        first = controller.decide([eligible(routes=self.AUTO)], sees(r=short))[0]
        second = controller.decide([eligible(routes=self.AUTO)], sees(r=long))[0]
        assert (first.proposer, second.proposer) == ("drafter", "copier")

    def test_nothing_to_copy_and_nothing_else_is_a_plain_step(self) -> None:
        controller = controller_with(FLAT)
        teach(controller, accepted=8, proposer="copier")
        decision = controller.decide([eligible(routes=(COPIER,))], sees())[0]
        assert (decision.depth, decision.code) == (0, ReasonCode.NO_DRAFT)

    @pytest.mark.parametrize(("copied", "proposer"), [(0, "drafter"), (1, "drafter"), (12, "copier")])
    def test_a_fixed_draft_length_takes_the_proposer_that_promises_most_at_it(self, copied: int, proposer: str) -> None:
        asks = [eligible(routes=self.AUTO, fixed=4)]
        decision = self.taught().decide(asks, sees(r=Draft.chain(range(copied))) if copied else sees())[0]
        assert (decision.proposer, decision.depth) == (proposer, 4)

    def test_a_fixed_draft_length_leaves_a_bad_proposer_for_one_that_was_never_timed(self) -> None:
        controller = controller_with(FLAT, draft_per_token=0.1)
        teach(controller, accepted=0)
        asks = [eligible(routes=(DRAFTER, Route("novice", "novice was asked for", PAYS)), fixed=4)]
        assert controller.decide(asks)[0].proposer == "novice"


class TestProbing:
    def run_off(self, rounds: int, per_token: float) -> list[int]:
        controller = controller_with(FLAT, draft_per_token=per_token)
        teach(controller, accepted=0)
        depths = []
        for _ in range(rounds):
            depths.append(length_of(controller))
            if depths[-1]:
                controller.observe(report(0, depth=depths[-1]))
        return depths

    @pytest.mark.parametrize("per_token", [0.05, 0.2, 0.8])
    def test_probes_take_no_more_than_their_share_of_time(self, per_token: float) -> None:
        depths = self.run_off(2000, per_token)
        spent = sum(depths) * per_token
        assert 0.8 * INCOME * 2000 < spent <= INCOME * 2000 + GRANT

    def test_a_drafter_that_takes_much_longer_than_expected_is_hardly_probed(self) -> None:
        controller = controller_with(FLAT, draft_per_token=0.2)
        teach(controller, accepted=0)
        probed = []
        for at in range(2000):
            if length_of(controller):
                probed.append(at)
                controller.observe(report(0, depth=PROBE_LENGTH))
                controller.cost.observe_draft("drafter", PROBE_LENGTH, 20.0, batch=1, lag=0)
        assert len(probed) <= 3

    def test_drafting_begins_again_when_probes_are_accepted(self) -> None:
        controller = controller_with(FLAT, draft_per_token=0.2)
        teach(controller, accepted=0)
        for _ in range(400):
            decision = controller.decide([eligible()])[0]
            if decision.depth:
                controller.observe(report(decision.depth, depth=decision.depth))
        assert decision.code is PAYS
        assert decision.depth > PROBE_LENGTH

    def test_the_longest_waiting_request_is_probed(self) -> None:
        controller = controller_with(FLAT, draft_per_token=0.2)
        teach(controller, accepted=0, request_id="a")
        teach(controller, accepted=0, request_id="b")
        probed = []
        for _ in range(200):
            for name, decision in zip("ab", controller.decide([eligible("a"), eligible("b")]), strict=True):
                if decision.depth:
                    probed.append(name)
                    controller.observe(report(0, depth=decision.depth, request_id=name))
        assert probed[:4] in (["a", "b", "a", "b"], ["b", "a", "b", "a"])


class TestHysteresis:
    def gain_of(self, controller: Controller, survival: float) -> int:
        controller.survival.estimate = lambda *_, **__: ([survival], [0.0])
        controller.survival.version += 1
        return length_of(controller)

    def test_what_lies_within_the_margin_neither_begins_nor_ends_drafting(self) -> None:
        controller = controller_with({1: 1.0}, draft_per_token=0.5)
        assert self.gain_of(controller, 0.51) == 0
        assert self.gain_of(controller, 0.8) == 1
        assert self.gain_of(controller, 0.51) == 1
        assert self.gain_of(controller, 0.45) == 0
        assert self.gain_of(controller, 0.51) == 0


def test_a_finished_request_is_forgotten() -> None:
    controller = controller_with(FLAT)
    teach(controller, accepted=8)
    length_of(controller)
    controller.drop("r")
    assert controller.decisions == {}
    assert controller.survival._requests == {}


class TestLongestDraft:
    """A proposer that says how far it can draft is not asked for more, nor trusted to go further."""

    SHORT = Route("drafter", "drafter was asked for", PAYS, max_depth=3)

    def test_what_is_always_accepted_goes_to_the_end_and_no_further(self) -> None:
        controller = controller_with(FLAT)
        teach(controller, accepted=3)
        assert length_of(controller, routes=(self.SHORT,)) == 3

    def test_a_longer_fixed_length_is_cut(self) -> None:
        decision = controller_with(FLAT).decide([eligible(fixed=5, routes=(self.SHORT,))])[0]
        assert (decision.depth, decision.nodes, decision.code) == (3, 3, ReasonCode.FIXED)

    def test_hopes_for_tokens_behind_the_end_do_not_make_a_draft_pay(self) -> None:
        """A draft takes as long as three plain steps, whatever its length."""
        controller = controller_with({1: 1.0})
        controller.cost.draft_seconds = lambda *_, **__: 3.0
        controller.cost.draft_line = lambda *_, **__: (3.0, 0.0)
        controller.survival.estimate = lambda *arguments, **_: ([0.9] * arguments[2], [0.0] * arguments[2])
        assert length_of(controller, request_id="long", routes=(DRAFTER,)) == 15
        assert length_of(controller, request_id="short", routes=(self.SHORT,)) == 0


class TestHolding:
    """Where nothing pays and nothing new is known, it is not thought about in every round."""

    def test_a_decision_not_to_draft_holds_for_a_few_rounds(self) -> None:
        controller = controller_with(FLAT, draft_per_token=1.2)
        teach(controller, accepted=0)
        controller.decide([eligible()])
        planned: list[int] = []
        original = controller._plan
        controller._plan = lambda requests, glimpses: (planned.append(1), original(requests, glimpses))[1]
        for _ in range(2 * HOLD):
            assert controller.decide([eligible()])[0].depth == 0
        assert len(planned) == 2

    @pytest.mark.parametrize("news", ["drafts", "glimpse"])
    def test_it_ends_at_once_where_something_is_new(self, news: str) -> None:
        controller = controller_with({1: 1.0, 32: 1.0}, draft_per_token=0.4, copier=1e-9)
        teach(controller, accepted=0, rounds=20)
        teach(controller, accepted=8, proposer="copier")
        both = (DRAFTER, COPIER)
        assert controller.decide([eligible(routes=both)])[0].depth == 0
        if news == "drafts":
            teach(controller, accepted=8)
        look = sees(r=Draft.chain(range(8))) if news == "glimpse" else sees()
        assert controller.decide([eligible(routes=both)], look)[0].depth > 0
