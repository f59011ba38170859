"""Decisions with each kind of reason, made by the real router and controller."""

from __future__ import annotations

from collections.abc import Mapping

from gamaneh.control.controller import Controller
from gamaneh.control.cost import CostModel
from gamaneh.control.fallback import Fault, Quarantine
from gamaneh.control.router import LONG_PROMPT, Eligible, Features, Router
from gamaneh.control.survival import SurvivalTracker
from gamaneh.core import AUTO, PLAIN, Decision, Needs, ReasonCode, StepReport
from gamaneh.engine.scheduler import NO_ROOM, PREFILL

FLAT = {1: 1.0, 16: 1.0}
CROWDED = {1: 1.0, 16: 1.0, 17: 2.5, 32: 4.0}
FEATURES = Features(prompt_len=10, limit=100, greedy=True)
LONG = Features(prompt_len=LONG_PROMPT, limit=100, greedy=False, grammar=True)
PROPOSERS = {"lookup": Needs(instant=True), "draft_model": Needs()}


def decisions() -> list[Decision]:
    """At least one of each reason code."""
    return [PREFILL, NO_ROOM, *_routed_plain(), *_drafting(), *_not_drafting()]


def _routed_plain() -> list[Decision]:
    """Those that leave the controller no choice."""
    failed = _router()
    failed.quarantine.report("lookup", "it takes more time than it saves", Fault.SLOW)
    failed.quarantine.report("draft_model", "RuntimeError: broken", Fault.ERROR)
    last = Features(prompt_len=10, limit=1, greedy=True)
    return [
        _decide(_router(), PLAIN, FEATURES),
        _decide(_router(), "lookup", last),
        _decide(failed, AUTO, FEATURES),
        *(_decide(_failing(fault), "lookup", FEATURES) for fault in Fault if fault is not Fault.SLOW),
        _decide(Router(Quarantine(), {}), AUTO, FEATURES),
        _decide(Router(Quarantine(), {"grammar": Needs(instant=True, grammar=True)}), "grammar", FEATURES),
    ]


def _drafting() -> list[Decision]:
    unmeasured = Controller(SurvivalTracker(), CostModel())
    untimed = Controller(SurvivalTracker(), CostModel())
    untimed.cost.observe_verify(1, 1.0)
    hoped = _controller(0, seconds=0.55, rounds=0)
    return [
        _decide(_router(), "draft_model", FEATURES, controller=untimed),
        _decide(_router(), "draft_model", FEATURES, controller=unmeasured),
        _decide(_router(), "draft_model", FEATURES, controller=hoped),
        _decide(_router(), "draft_model", FEATURES, fixed=5),
        _decide(_router(), "draft_model", FEATURES, controller=_controller(8)),
        _decide(_router(), AUTO, LONG, controller=_controller(8)),
    ]


def _not_drafting() -> list[Decision]:
    router = _router()
    batch = _controller(2, CROWDED).decide(
        [Eligible(f"r{at}", router.routes("draft_model", FEATURES), 15) for at in range(12)]
    )
    return [
        next(decision for decision in batch if decision.code is ReasonCode.LOAD),
        _decide(router, "draft_model", FEATURES, controller=_controller(0, seconds=0.2)),
        _decide(_silent(), AUTO, FEATURES),
    ]


def _router() -> Router:
    return Router(Quarantine(), PROPOSERS)


def _failing(fault: Fault) -> Router:
    router = _router()
    router.quarantine.report("lookup", "ValueError: no", fault)
    return router


def _silent() -> Router:
    """Of its two proposers neither has anything to offer."""
    return Router(Quarantine(), {"lookup": Needs(instant=True), "suffix": Needs(instant=True)})


def _controller(
    accepted: int, verify: Mapping[int, float] = FLAT, seconds: float = 1e-9, rounds: int = 60
) -> Controller:
    """Knows what everything costs, and how many of eight candidates of the draft model are accepted."""
    cost = CostModel()
    for rows, verify_seconds in verify.items():
        cost.anchor_verify(rows, verify_seconds)
    for name, depth in [(name, depth) for name in (*PROPOSERS, "suffix") for depth in (1, 8)]:
        cost.anchor_draft(name, depth, depth * seconds)
    cost.observe_verify(1, cost.verify_seconds(1))
    controller = Controller(SurvivalTracker(), cost)
    controller.budget.tried = dict.fromkeys((*PROPOSERS, "suffix"), 0)
    report = StepReport("r0", "draft_model", "match", 8, 8, accepted, accepted + 1, 1, 10, 0, 0, 8, "", ReasonCode.PAYS)
    for _ in range(rounds):
        controller.observe(report)
    return controller


def _decide(
    router: Router, wanted: str, features: Features, *, fixed: int | None = None, controller: Controller | None = None
) -> Decision:
    controller = controller or _controller(8)
    return controller.decide([Eligible("r0", router.routes(wanted, features), 15, fixed)])[0]
