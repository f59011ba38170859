"""`python -m tools.deciding`: microseconds per round of router and controller, without any model.

A simulated target and simulated proposers: `lookup` and `suffix` show drafts in half of the rounds, `draft_model`
always drafts. Acceptance and costs are fixed, so that two trees of the source can be compared.

    routing     `Router.eligible` for all requests
    glimpsing   `Controller.wanted`
    deciding    `Controller.decide`
    learning    `Controller.learn`

Each is the mean over the rounds.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

from gamaneh.control.controller import Controller
from gamaneh.control.cost import CostModel
from gamaneh.control.fallback import Quarantine
from gamaneh.control.router import Eligible, Features, Router
from gamaneh.control.survival import SurvivalTracker
from gamaneh.core import AUTO, Decision, Draft, Needs, StepReport, Stopwatch
from gamaneh.options import Drafting

PROPOSERS = {"draft_model": Needs(), "lookup": Needs(instant=True), "suffix": Needs(instant=True)}
DRAFT_COST = {"draft_model": 0.2, "lookup": 0.002, "suffix": 0.002}
"""Plain steps of one candidate."""

ANSWER = 200
LONGEST = 15
FEATURES = Features(prompt_len=100, limit=ANSWER, greedy=True)

_T = TypeVar("_T")


class Simulation:
    """Requests that are answered again and again."""

    def __init__(self, wanted: str, batch: int, accepted: float, seed: int = 1) -> None:
        self.drafting = Drafting(proposer=wanted)
        self.accepted, self.draws = accepted, random.Random(seed)
        cost, quarantine = CostModel(), Quarantine()
        quarantine.leaves_out_slow = False
        for rows in (1, 2, 4, 8, 16, 32, 64):
            cost.anchor_verify(rows, self.verify_seconds(rows))
        self.router = Router(quarantine, PROPOSERS)
        self.controller = Controller(SurvivalTracker(), cost, quarantine)
        self.emitted = {f"r{at}": 0 for at in range(batch)}
        self.taken: dict[str, list[float]] = defaultdict(list)

    @staticmethod
    def verify_seconds(rows: int) -> float:
        """Eight rows cost 1.6 of one."""
        return 0.01 * (1.0 + 0.6 * (rows - 1) / 7)

    def round(self) -> None:
        """Decide about one round, and learn from it."""
        requests = self._timed("routing", self._eligible)
        wanted = self._timed("glimpsing", lambda: self.controller.wanted(requests))
        glimpses = {
            (name, request): self._glimpse(most) for name, own in wanted.items() for request, most in own.items()
        }
        decisions = self._timed("deciding", lambda: self.controller.decide(requests, glimpses))
        watch = Stopwatch(lambda: 0.0)
        for name in PROPOSERS:
            lengths = [decision.depth for decision in decisions if decision.proposer == name]
            if lengths or name in wanted:
                watch.draft_seconds[name] = 0.01 * DRAFT_COST[name] * max(lengths, default=0)
        reports = [self._report(request, decision) for request, decision in zip(self.emitted, decisions, strict=True)]
        seconds = self.verify_seconds(len(reports) + sum(report.drafted for report in reports))
        self._timed("learning", lambda: self.controller.learn(reports, [0] * len(reports), watch, seconds))
        for report in reports:
            self.emitted[report.request_id] += report.emitted
            if self.emitted[report.request_id] >= ANSWER - 1:
                self.controller.drop(report.request_id)
                self.emitted[report.request_id] = 0

    def _eligible(self) -> list[Eligible]:
        return [
            self.router.eligible(
                request, self.drafting, FEATURES, emitted=emitted, context=100 + emitted, lag=lambda name: 0, unfit=()
            )
            for request, emitted in self.emitted.items()
        ]

    def _glimpse(self, most: int) -> Draft:
        return Draft.chain(range(min(8, most))) if self.draws.random() < 0.5 else Draft()

    def _report(self, request: str, decision: Decision) -> StepReport:
        kept = 0
        while kept < decision.depth and self.draws.random() < self.accepted:
            kept += 1
        counts = decision.depth, decision.depth, kept, kept + 1, len(self.emitted), 100 + self.emitted[request]
        return StepReport(
            request, decision.proposer, "match", *counts, 0.0, 0.0, decision.depth, decision.reason, decision.code
        )

    def _timed(self, name: str, work: Callable[[], _T]) -> _T:
        started = time.perf_counter()
        done = work()
        self.taken[name].append(1e6 * (time.perf_counter() - started))
        return done


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table, then one line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m tools.deciding", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=2000)
    options = parser.parse_args(arguments)
    document = []
    for wanted in ("lookup", "draft_model", AUTO):
        for batch in (1, 4):
            for accepted in (0.1, 0.8):
                simulation = Simulation(wanted, batch, accepted)
                for _ in range(options.rounds):
                    simulation.round()
                taken = {name: statistics.fmean(each) for name, each in simulation.taken.items()}
                total = sum(taken.values())
                parts = ", ".join(f"{name} {each:.0f}" for name, each in taken.items())
                print(f"{wanted:>12} x{batch} accepted {accepted}: {total:4.0f} us per round ({parts})")
                document.append({"proposer": wanted, "batch": batch, "accepted": accepted, "microseconds": taken})
    print(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
