"""Measures one target and its candidates: what rounds cost here, and what becomes of drafts."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gamaneh.bench.advise.candidate import NO_PARTS, Candidate, CandidateWorkshop, Unusable
from gamaneh.bench.advise.costs import Costs, Surface
from gamaneh.bench.advise.predict import Predictor
from gamaneh.bench.advise.recording import PlainRecording, Recording, record, record_plain
from gamaneh.bench.advise.timing import RecordedSteps, RunClock, fixed, time_drafts, time_steps
from gamaneh.bench.advise.workload import Workload
from gamaneh.bench.time_limit import TimeLimit
from gamaneh.core import Needs
from gamaneh.errors import GamanehError
from gamaneh.options import SamplingParams, SpeculationOptions

Say = Callable[[str], None]
"""Called with what is about to be measured."""

STEPS_SHARE = 0.25
"""Of the time, for timing rounds without drafts."""

VALIDATION_PASSES = 3
"""Plain, fixed and served: how often the real run answers each request."""

MOST_NODES = 64
"""Candidates of one request beyond which rounds are not timed: their cost is drawn on in a line."""

INSTANT_K = 15
"""Largest draft length of proposers whose drafts cost next to nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured.

    Args:
        largest_k: longest drafts of proposers that take time to draft.
        repeats: measurements of each timing.
        depths: candidates of each request in timed rounds.
    """

    largest_k: int = 8
    repeats: int = 3
    depths: tuple[int, ...] = (1, 2, 4, 8, 15)


QUICK = Effort(largest_k=4, repeats=2, depths=(1, 4))
"""Shows that everything runs; the figures mean little."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One candidate with what was measured of it."""

    candidate: Candidate
    recording: Recording
    predictor: Predictor

    @property
    def draft_step_ratio(self) -> float:
        """Seconds of one more candidate / seconds of a plain round, one request at a time: c in the papers."""
        costs = self.predictor.costs
        if costs.draft is None:
            return 0.0
        k = self.predictor.largest
        return costs.draft.seconds(1, k) / k / costs.step.seconds(1, 0)


class Measurements:
    """The measurements of one target on one workload.

    Args:
        batches: numbers of requests at once that are asked about.
        say: told what goes on.
        limit: of the whole run, the validation that follows included.
    """

    def __init__(
        self,
        workshop: CandidateWorkshop,
        workload: Workload,
        params: SamplingParams,
        batches: Sequence[int],
        effort: Effort,
        say: Say,
        limit: TimeLimit,
    ) -> None:
        self.workload, self.params, self.batches, self.effort, self.say = workload, params, batches, effort, say
        self.limit = limit
        self._workshop = workshop

    def plain(self, candidates: Sequence[Candidate | Unusable]) -> tuple[RecordedSteps, PlainRecording]:
        """Rounds of all sizes that these candidates may draft, and the plain answers.

        Raises:
            GamanehError: a request cannot be answered.
        """
        self.say("time of a round, by requests at once and draft length")
        requests, llm = self.workload.requests, self._workshop.build(NO_PARTS, SpeculationOptions())
        depths = timed_depths(candidates, self.effort)
        steps = time_steps(
            llm.engine, requests, self.batches, depths, self.effort.repeats, self.limit.share(STEPS_SHARE)
        )
        self.say("plain answers")
        cold = self._workshop.build(NO_PARTS, SpeculationOptions())
        usable = sum(isinstance(one, Candidate) for one in candidates)
        return steps, record_plain(cold, requests, self.params, steps, self.limit, usable + VALIDATION_PASSES)

    def proposers(
        self, candidates: Sequence[Candidate | Unusable], steps: RecordedSteps, plain: PlainRecording
    ) -> Iterator[Measured | Unusable]:
        """Each candidate; those that fail are told with their failure."""
        for number, one in enumerate(candidates):
            gc.collect()  # engines of the one before may lie in reference cycles
            yield one if isinstance(one, Unusable) else self._measured(one, steps, plain, len(candidates) - number)

    def _measured(
        self, one: Candidate, steps: RecordedSteps, plain: PlainRecording, to_come: int
    ) -> Measured | Unusable:
        self.say(f"drafts of {one.title}")
        k = largest_k(one.needs, self.effort)
        try:
            share = self.limit.share(1 / (to_come + VALIDATION_PASSES))
            recording = record(one.llm, fixed(one.proposer, k), plain, self.params, steps, share)
            self._time_drafts(one, k, recording, steps)
        except GamanehError as error:
            return Unusable(one.title, str(error))
        failures = one.llm.engine.quarantine
        if any(name == one.proposer for name, _ in failures.counts):
            return Unusable(one.title, failures.reason(one.proposer))
        if not recording.draft_seconds:
            return Unusable(one.title, "the prompts leave no room for a draft in the model's context")
        costs = Costs(steps.whole, Surface(recording.draft_seconds), recording.reading_seconds)
        return Measured(one, recording, Predictor(recording.traces, costs))

    def _time_drafts(self, one: Candidate, k: int, recording: Recording, steps: RecordedSteps) -> None:
        """Of one request, with short drafts as well; of the largest batch, between which lines are drawn."""
        watch = RunClock(one.llm.engine, self.workload.requests)
        batches = sorted({1, *self.batches[-1:]})
        timed = time_drafts(watch, one.proposer, batches, sorted({1, k}), self.effort.repeats, steps)
        for cell, seconds in timed.items():
            recording.draft_seconds.setdefault(cell, []).extend(seconds)


def timed_depths(candidates: Sequence[Candidate | Unusable], effort: Effort) -> tuple[int, ...]:
    """Candidates of one request in timed rounds, up to the largest tree that any proposer may draft."""
    needs = [one.needs for one in candidates if isinstance(one, Candidate)]
    widest = min(max((largest_k(each, effort) * each.branching for each in needs), default=0), MOST_NODES)
    depths = list(effort.depths)
    while depths[-1] < widest:
        depths.append(min(2 * depths[-1] + 1, widest))
    return tuple(depths)


def largest_k(needs: Needs, effort: Effort) -> int:
    """The draft length that a proposer is recorded at."""
    return INSTANT_K if needs.instant else effort.largest_k
