"""Times rounds of an engine: plain ones, verifies of any size, and the drafts of a proposer.

A filler drafts whatever number of candidates it is asked for in no time, so that the seconds of verifying
depend on their number alone and not on what some proposer had to offer.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median

from gamaneh import core
from gamaneh.bench.advise.costs import Cell, Surface
from gamaneh.bench.advise.workload import WorkloadRequest
from gamaneh.bench.time_limit import TimeLimit
from gamaneh.core import BatchReport, Draft, Needs, ProposalRow, Proposer, StepReport
from gamaneh.engine.engine import Engine
from gamaneh.errors import InvalidOption
from gamaneh.options import SamplingParams, SpeculationOptions

ROUNDS = 6
"""Rounds of one request whose median is one measurement; there are fewer of several requests, which take longer."""

FEWEST_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class TimedRound:
    """One round in which every request decoded.

    Args:
        rows: candidates that were verified.
        depth: of the longest draft.
        draft_seconds: of all drafts together.
        verify_seconds: of the target's forward.
        step_seconds: of the whole round.
    """

    rows: int
    depth: int
    draft_seconds: float
    verify_seconds: float
    step_seconds: float

    @property
    def rest_seconds(self) -> float:
        """Everything but the drafts."""
        return self.step_seconds - self.draft_seconds

    @property
    def overhead_seconds(self) -> float:
        """Neither drafts nor the target's forward."""
        return self.rest_seconds - self.verify_seconds


@dataclass(frozen=True, slots=True)
class RecordedSteps:
    """Rounds without proposers, by requests and rows of drafts.

    Args:
        whole: seconds of a round without its drafts.
        verify: of the target's forward alone.
        overhead: median seconds of a plain round beside the forward, for each request.
    """

    whole: Surface
    verify: Surface
    overhead: float

    def at_pace(self, seconds: float, verify_seconds: float, batch: int, rows: int) -> float:
        """What `seconds` would have been at the pace of these measurements.

        The speed of a shared machine changes from minute to minute. A forward that stands beside what was
        timed, and took `verify_seconds`, tells by how much.
        """
        return seconds * self.verify.seconds(batch, rows) / verify_seconds


class Filler(Proposer):
    """Drafts as many candidates as it may, all the same token: right only by accident."""

    name = "filler"
    needs = Needs()

    def propose(self, rows: Sequence[ProposalRow]) -> list[Draft]:
        return [Draft.chain([row.tokens[-1]] * row.max_depth) for row in rows]

    def memory_bytes(self) -> int:
        return 0


class RunClock:
    """Runs requests on an engine that nobody else uses, and times the rounds.

    Args:
        requests: whose prompts stand before the rounds, in turns.
    """

    def __init__(self, engine: Engine, requests: Sequence[WorkloadRequest]) -> None:
        self._engine, self._requests = engine, requests
        self._seen: list[TimedRound] = []
        self._depth = self._batch = 0

    def rounds(self, batch: int, speculation: SpeculationOptions) -> list[TimedRound]:
        """Rounds of `batch` requests, after one in which a proposer catches up with the prompts.

        There are fewer than usual where the context is too short for them.
        """
        count = max(ROUNDS // batch, FEWEST_ROUNDS)
        tokens = (count + 2) * (1 + (speculation.draft_length or 0))
        with self._listening(batch):
            ids = [self._add(request, tokens, speculation) for request in self._turns(batch)]
            while len(self._seen) < count + 1 and self._engine.has_work:
                self._engine.step()
            for request_id in ids:
                self._engine.abort(request_id)
        return self._seen[1 : count + 1]

    @contextmanager
    def _listening(self, batch: int) -> Iterator[None]:
        self._seen, self._depth, self._batch = [], 0, batch
        self._engine.observers.append(self._note_depth)
        self._engine.batch_observers.append(self._note_round)
        try:
            yield
        finally:
            self._engine.observers.remove(self._note_depth)
            self._engine.batch_observers.remove(self._note_round)

    def _note_depth(self, report: StepReport) -> None:
        self._depth = max(self._depth, report.depth)

    def _note_round(self, report: BatchReport) -> None:
        depth, self._depth = self._depth, 0
        if report.prompt_rows or report.requests < self._batch:
            return
        drafts = sum(report.draft_seconds.values())
        self._seen.append(TimedRound(report.draft_rows, depth, drafts, report.verify_seconds, report.step_seconds))

    def _turns(self, batch: int) -> Iterable[WorkloadRequest]:
        return itertools.islice(itertools.cycle(self._requests), batch)

    def _add(self, request: WorkloadRequest, tokens: int, speculation: SpeculationOptions) -> str:
        room = self._engine.max_context - len(request.prompt)
        params = SamplingParams(max_tokens=max(min(tokens, room), 1), ignore_eos=True)
        return self._engine.add(core.Request(request.prompt, params, drafting=speculation))


def time_steps(
    engine: Engine,
    requests: Sequence[WorkloadRequest],
    batches: Sequence[int],
    depths: Sequence[int],
    repeats: int,
    limit: TimeLimit,
) -> RecordedSteps:
    """Time rounds with and without candidates, all sizes in turns; the first turn warms up and is dropped.

    Args:
        engine: without other requests; a filler joins its proposers.
        depths: candidates of each request, beside none.
        limit: no turn begins after it; if it ends in the first one, that one counts.

    Raises:
        InvalidOption: no prompt leaves room for as many rounds as it takes.
    """
    engine.register(Filler())
    watch = RunClock(engine, requests)
    cells = [(batch, k) for batch in batches for k in (0, *depths)]
    whole: dict[Cell, list[float]] = defaultdict(list)
    verify: dict[Cell, list[float]] = defaultdict(list)
    overheads: list[float] = []
    for turn in range(1 + repeats):
        if turn and limit.over:
            break
        if turn == 1:
            for warmed_up in (whole, verify, overheads):
                warmed_up.clear()
        for batch, k in cells if turn % 2 else reversed(cells):
            rounds = watch.rounds(batch, _filled(k))
            if rounds:
                whole[batch, rounds[-1].rows].append(median(one.rest_seconds for one in rounds))
                verify[batch, rounds[-1].rows].append(median(one.verify_seconds for one in rounds))
            if k == 0:
                overheads += [one.overhead_seconds / batch for one in rounds]
    if not whole:
        raise InvalidOption("prompts", "must leave room for a few rounds in the model's context", engine.max_context)
    return RecordedSteps(Surface(whole), Surface(verify), median(overheads))


def time_drafts(
    watch: RunClock, proposer: str, batches: Sequence[int], depths: Sequence[int], repeats: int, steps: RecordedSteps
) -> dict[Cell, list[float]]:
    """Seconds of a proposer's drafts by requests and depth of the longest one, in turns, at the pace of `steps`."""
    cells = [(batch, k) for batch in batches for k in depths]
    seconds: dict[Cell, list[float]] = defaultdict(list)
    for turn in range(repeats):
        for batch, k in cells if turn % 2 else reversed(cells):
            for one in watch.rounds(batch, fixed(proposer, k)):
                paced = steps.at_pace(one.draft_seconds, one.verify_seconds, batch, one.rows)
                seconds[batch, one.depth].append(paced)
    return seconds


def fixed(proposer: str, k: int) -> SpeculationOptions:
    """Drafts of always the same length."""
    usual = SpeculationOptions()
    return SpeculationOptions(proposer=proposer, draft_length=k, max_draft_length=max(k, usual.max_draft_length))


def _filled(k: int) -> SpeculationOptions:
    return fixed(Filler.name, k) if k else SpeculationOptions()
