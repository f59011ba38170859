"""Where the time of a round goes: target forward, draft forwards, and everything else.

Formulas
    overhead    seconds of `Engine.step` - seconds of the target's forward - seconds of the draft model's forwards
    share       sum of overhead / sum of target forward, over all rounds
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from gamaneh.backends.paged import PagedBackend
from gamaneh.core import Feed, Request, StepReport
from gamaneh.engine.engine import Engine
from gamaneh.engine.llm import LLM
from gamaneh.options import SamplingParams, SpeculationOptions
from gamaneh.proposers.draft_model import DraftModelProposer
from tools.cases import Case


@dataclass(frozen=True, slots=True)
class Overhead:
    """The rounds of some answers; seconds are medians over rounds.

    Args:
        draft_length: None when it adapts.
        drafted: candidates per round.
        proposing_seconds: part of the overhead: what the proposer takes beside its forwards.
        share: see above; `median_share` is the median of the rounds' own shares.
    """

    proposer: str
    draft_length: int | None
    rounds: int
    drafted: float
    target_seconds: float
    draft_seconds: float
    proposing_seconds: float
    overhead_seconds: float
    share: float
    median_share: float


@dataclass(frozen=True, slots=True)
class _Round:
    drafted: int
    target: float
    draft: float
    proposing: float
    overhead: float


class TimedBackend(PagedBackend):
    """Adds up the seconds of its forwards."""

    def __init__(self, inner: PagedBackend) -> None:
        super().__init__(inner.model, inner.kv)
        self.seconds = 0.0

    def verify(self, feeds: Sequence[Feed], *, taps: Sequence[int] = (), num_layers: int | None = None) -> None:
        started = time.perf_counter()
        super().verify(feeds, taps=taps, num_layers=num_layers)
        self.seconds += time.perf_counter() - started

    def take(self) -> float:
        """Seconds since the last `take`."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


def measure_overhead(
    llm: LLM, speculation: SpeculationOptions, cases: Sequence[Case], params: SamplingParams
) -> Overhead:
    """Answer the cases one by one, on an engine of their own, and take the rounds apart.

    The first case is answered once before, and that is dropped. Prefill steps do not count.
    """
    watch = _Watch(llm.with_speculation(speculation).engine)
    list(watch.rounds(cases[0], params))
    rounds = [round_ for case in cases for round_ in watch.rounds(case, params)]
    return Overhead(
        proposer=speculation.proposer,
        draft_length=speculation.draft_length,
        rounds=len(rounds),
        drafted=statistics.mean(round_.drafted for round_ in rounds),
        target_seconds=statistics.median(round_.target for round_ in rounds),
        draft_seconds=statistics.median(round_.draft for round_ in rounds),
        proposing_seconds=statistics.median(round_.proposing for round_ in rounds),
        overhead_seconds=statistics.median(round_.overhead for round_ in rounds),
        share=sum(round_.overhead for round_ in rounds) / sum(round_.target for round_ in rounds),
        median_share=statistics.median(round_.overhead / round_.target for round_ in rounds),
    )


class _Watch:
    """An engine with a clock on each of its models."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._target = engine.scheduler.backend = TimedBackend(cast(PagedBackend, engine.backend))
        self._draft = _watched_draft(engine)
        self._report: StepReport | None = None
        engine.observers.append(self._note)

    def rounds(self, case: Case, params: SamplingParams) -> Iterator[_Round]:
        """Answer one case and yield the rounds after its prefill."""
        self._engine.add(Request([int(token) for token in case.prompt], params))
        while self._engine.has_work:
            self._report = None
            started = time.perf_counter()
            self._engine.step()
            step = time.perf_counter() - started
            target, draft = self._target.take(), self._draft.take() if self._draft else 0.0
            if self._report is not None:
                proposing = self._report.draft_seconds - draft
                yield _Round(self._report.drafted, target, draft, proposing, step - target - draft)

    def _note(self, report: StepReport) -> None:
        self._report = report


def _watched_draft(engine: Engine) -> TimedBackend | None:
    if DraftModelProposer.name not in engine.proposers:
        return None
    reader = cast(DraftModelProposer, engine.proposers[DraftModelProposer.name]).reader
    watched = reader.backend = TimedBackend(cast(PagedBackend, reader.backend))
    return watched
