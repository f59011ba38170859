"""What router, controller and fallback are doing now, for a person or a page to read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from gamaneh.control.budget import INCOME
from gamaneh.control.controller import Controller, Totals
from gamaneh.control.fallback import Quarantine
from gamaneh.control.survival import CAUTION, DraftSource
from gamaneh.core import Decision, Proposer, ReasonCode, ReasonDetails

State = Literal["ready", "quarantine", "probation"]

SHOWN_POSITIONS = 8
"""Positions whose survival is shown; what lies deeper is seldom drafted."""


@dataclass(frozen=True, slots=True)
class SurvivalSnapshot:
    """Survival by position of drafts of one grade, for a request of which nothing is known.

    Args:
        estimate: s_1, s_2, ...
        bound: their cautious lower bounds, by which the controller decides.
    """

    grade: int
    estimate: tuple[float, ...]
    bound: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ProposerSnapshot:
    """One proposer.

    Args:
        state: `probation` is ready again after a quarantine, and not cleared yet.
        reason: of the last failure, in words; empty with a clear record.
        fault: the kind of that failure; empty with a clear record.
        rounds_left: until it is tried again.
        failures: by fault.
        draft_seconds: expected seconds by draft length.
        memory_bytes: weights and caches.
        about: how it drafts and why so, in words, where there was a choice.
    """

    state: State
    reason: str
    fault: str
    rounds_left: int
    failures: Mapping[str, int]
    survival: tuple[SurvivalSnapshot, ...]
    draft_seconds: Mapping[int, float]
    totals: Totals
    memory_bytes: int
    about: str


@dataclass(frozen=True, slots=True)
class RequestSnapshot:
    """What a running request does in this round, and why: in words, and what those are made of."""

    proposer: str
    depth: int
    reason: str
    code: ReasonCode
    details: ReasonDetails


@dataclass(frozen=True, slots=True)
class SpeculationSnapshot:
    """The whole of it.

    Args:
        proposers, requests: by name and by id.
        verify_seconds: median seconds of a step without drafts, by computed token rows.
        loss_share: most of the time that finding out may lose in the long run.
        loss_balance: plain steps that it may lose now; below 0 nothing is tried.
    """

    proposers: Mapping[str, ProposerSnapshot]
    requests: Mapping[str, RequestSnapshot]
    verify_seconds: Mapping[int, float]
    loss_share: float
    loss_balance: float


def take_snapshot(controller: Controller, proposers: Mapping[str, Proposer]) -> SpeculationSnapshot:
    """Return what is going on; to be called between two rounds."""
    return SpeculationSnapshot(
        proposers={name: _proposed(name, controller, proposer) for name, proposer in proposers.items()},
        requests={request_id: _request(decision) for request_id, decision in controller.decisions.items()},
        verify_seconds=controller.cost.verify.shape.points(),
        loss_share=INCOME,
        loss_balance=controller.budget.balance,
    )


def _request(decision: Decision) -> RequestSnapshot:
    return RequestSnapshot(decision.proposer, decision.depth, decision.reason, decision.code, decision.details)


def _proposed(name: str, controller: Controller, proposer: Proposer) -> ProposerSnapshot:
    quarantine = controller.quarantine
    return ProposerSnapshot(
        state=_state(name, quarantine),
        reason=quarantine.reason(name),
        fault=quarantine.fault(name) or "",
        rounds_left=quarantine.rounds_left(name),
        failures={fault.value: count for (proposer, fault), count in quarantine.counts.items() if proposer == name},
        survival=tuple(_survival(controller, DraftSource(name, grade)) for grade in controller.survival.grades(name)),
        draft_seconds=controller.cost.draft_points().get(name, {}),
        totals=replace(controller.totals[name]),
        memory_bytes=proposer.memory_bytes(),
        about=proposer.needs.about,
    )


def _state(name: str, quarantine: Quarantine) -> State:
    if not quarantine.allows(name):
        return "quarantine"
    return "probation" if quarantine.on_probation(name) else "ready"


def _survival(controller: Controller, source: DraftSource) -> SurvivalSnapshot:
    tracker = controller.survival
    return SurvivalSnapshot(
        grade=source.grade,
        estimate=tuple(tracker.survival(source, "", SHOWN_POSITIONS)),
        bound=tuple(tracker.survival(source, "", SHOWN_POSITIONS, caution=CAUTION)),
    )
