"""Simulated worlds for the controller: scripted acceptance, a cost function, and time that passes only in the sum.

What is compared are expected tokens over seconds, so that luck in the draws is in what the controller learns and not in
what it is judged by.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from gamaneh.control.controller import Controller
from gamaneh.control.cost import CostModel
from gamaneh.control.router import Eligible, Route
from gamaneh.control.survival import SurvivalTracker
from gamaneh.core import ReasonCode, StepReport

TOKENS = 200
"""Length of each answer."""

LONGEST = 15
MEASURED = (1, 2, 4, 8, 16, 32, 64)
DRAFTER = Route("drafter", "drafter was asked for", ReasonCode.PAYS)


def flat(rows: int) -> float:
    """Sixteen rows cost what one costs, as where reading the weights takes the time."""
    return 1.0 + 0.5 * ((rows - 1) // 16)


def linear(rows: int) -> float:
    """Each row costs a tenth of a plain step beside a fixed part, as where arithmetic takes much of the time."""
    return 0.9 + 0.1 * rows


def compiled(rows: int) -> float:
    """Eight rows cost 1.6 of one."""
    return 1.0 + 0.6 * (rows - 1) / 7


@dataclass(frozen=True, kw_only=True)
class World:
    """One target and one drafter.

    Args:
        survival: chance of each candidate to be accepted once reached, by request of a place.
        draft: plain steps of one candidate, of one request; others beside it add a twentieth each.
        rows: seconds of a verify by rows.
        empty: drafts take their time and hold nothing.
        spoiled: factors of the calibration: of all, of additional rows, of drafts.
    """

    survival: Callable[[int], float]
    draft: float
    rows: Callable[[int], float] = flat
    batch: int = 1
    empty: bool = False
    spoiled: tuple[float, float, float] = (1.0, 1.0, 1.0)
    seed: int = 1

    def draft_seconds(self, length: int, asked: int) -> float:
        return self.draft * length * (1.0 + 0.05 * (asked - 1)) if asked else 0.0

    def expected(self, survival: float, length: int) -> float:
        """Tokens of a round with a draft of this length."""
        return 1.0 if self.empty else 1.0 + sum(survival**at for at in range(1, length + 1))

    def fixed_rate(self, survival: float, length: int) -> float:
        """Tokens per second of the whole batch with always this draft length."""
        rows = self.batch * (1 + (0 if self.empty else length))
        seconds = self.rows(rows) + self.draft_seconds(length, self.batch if length else 0)
        return self.batch * self.expected(survival, length) / seconds

    @cache  # noqa: B019 - worlds are few
    def best_fixed(self, survival: float) -> float:
        return max(self.fixed_rate(survival, length) for length in range(LONGEST + 1))


def _tiled(rows: int) -> int:
    return -(-rows // 16) * 16


def _alone(rows: int) -> int:
    return rows


def controller_for(world: World) -> Controller:
    """Calibrated as an engine is, or as one whose calibration is wrong."""
    cost = CostModel(_tiled if world.rows is flat else _alone)
    everything, rows, drafts = world.spoiled
    for size in MEASURED:
        cost.anchor_verify(size, everything * (world.rows(1) + rows * (world.rows(size) - world.rows(1))))
    for length in (1, 8):
        cost.anchor_draft("drafter", length, everything * drafts * world.draft * length)
    return Controller(SurvivalTracker(), cost)


@dataclass
class Place:
    """One request after the other."""

    at: int
    number: int = 0
    left: int = TOKENS
    context: int = 100


@dataclass
class Score:
    """Expected tokens, and seconds for them: of the controller, of the best fixed length and of plain decoding."""

    tokens: float = 0.0
    seconds: float = 0.0
    best_seconds: float = 0.0
    plain_seconds: float = 0.0
    lengths: list[int] = field(default_factory=list)

    @property
    def of_best(self) -> float:
        return self.best_seconds / self.seconds

    @property
    def of_plain(self) -> float:
        return self.plain_seconds / self.seconds


def run(world: World, requests: int = 6, controller: Controller | None = None) -> list[Score]:
    """Scores by the number of the requests that were under way: the first ones of all places, the second ones, ..."""
    controller = controller or controller_for(world)
    draws = random.Random(world.seed)
    places = [Place(at) for at in range(world.batch)]
    scores = [Score() for _ in range(requests)]
    while (number := min(place.number for place in places)) < requests:
        _round(world, controller, places, draws, scores[number])
    return scores


def _round(world: World, controller: Controller, places: list[Place], draws: random.Random, score: Score) -> None:
    asked = [
        Eligible(
            f"{place.at}.{place.number}",
            (DRAFTER,),
            min(LONGEST, place.left - 1),
            kind="greedy",
            expected=float(place.left),
        )
        for place in places
    ]
    decisions = controller.decide(asked)
    lengths = [decision.depth for decision in decisions]
    drafting = sum(length > 0 for length in lengths)
    drafted = 0 if world.empty else sum(lengths)
    draft_seconds = world.draft_seconds(max(lengths), drafting)
    verify_seconds = world.rows(world.batch + drafted)
    reports = []
    for place, decision in zip(places, decisions, strict=True):
        alpha = world.survival(place.number)
        accepted = 0
        while not world.empty and accepted < decision.depth and draws.random() < alpha:
            accepted += 1
        held = 0 if world.empty else decision.depth
        counts = (held, held, accepted, accepted + 1, world.batch, place.context)
        name = f"{place.at}.{place.number}"
        reports.append(
            StepReport(name, decision.proposer, "match", *counts, 0.0, 0.0, decision.depth, "", decision.code)
        )
        score.tokens += world.expected(alpha, decision.depth)
        score.best_seconds += world.expected(alpha, decision.depth) / world.best_fixed(alpha)
        score.plain_seconds += world.expected(alpha, decision.depth) / world.fixed_rate(alpha, 0)
    score.lengths.append(max(lengths))
    score.seconds += draft_seconds + verify_seconds
    if drafting:
        controller.cost.observe_draft("drafter", max(lengths), draft_seconds, batch=drafting, lag=0)
    controller.cost.observe_verify(world.batch + drafted, verify_seconds, batch=world.batch)
    for report in reports:
        controller.observe(report)
    controller.book(reports)
    for place, report in zip(places, reports, strict=True):
        place.left -= report.emitted
        if place.left <= 0:
            controller.drop(report.request_id)
            place.number, place.left = place.number + 1, TOKENS


def steady(survival: float) -> Callable[[int], float]:
    return lambda number: survival
