"""What a set of requests takes with so many at once: rounds that are known, at costs that were measured."""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from gamaneh.bench.advise.costs import Costs
from gamaneh.bench.advise.trace import PLAIN_ROUND, Round, Trace

T = TypeVar("T")

FEWEST_UNITS = 4
"""Units that are run where several requests run at once; with a single one there is nothing to resample."""

REQUESTS_PER_SLOT = 2
"""Requests of a unit for each place in the batch: one is followed by another."""


@dataclass(frozen=True, slots=True)
class SimulatedJob:
    """One request: reading its prompt, then its rounds."""

    prefill_seconds: float
    prompt_tokens: int
    rounds: Sequence[Round]

    @classmethod
    def plain(cls, trace: Trace) -> SimulatedJob:
        """The same answer, one token a round."""
        return cls(trace.prefill_seconds, trace.prompt_tokens, [PLAIN_ROUND] * trace.tokens)


def simulate(jobs: Sequence[SimulatedJob], batch: int, costs: Costs) -> float:
    """Seconds until all jobs are done, at most `batch` of them at once; as one ends the next begins.

    Prompts are read in the rounds of the requests that are under way: what they add is what they take alone
    beyond a round without anything.
    """
    waiting = deque(jobs)
    active: list[Iterator[Round]] = []
    bare, seconds = costs.step.seconds(1, 0), 0.0
    while waiting or active:
        begun = [waiting.popleft() for _ in range(min(batch - len(active), len(waiting)))]
        going = [(rounds, next(rounds, None)) for rounds in active]
        now = [round_ for _, round_ in going if round_ is not None]
        seconds += sum(max(job.prefill_seconds - bare, 0.0) + costs.reading * job.prompt_tokens for job in begun)
        if now:
            rows = sum(round_.rows for round_ in now)
            seconds += costs.round_seconds(len(now), rows, max(round_.depth for round_ in now))
        elif begun:
            seconds += min(bare, max(job.prefill_seconds for job in begun))
        active = [rounds for rounds, round_ in going if round_ is not None] + [iter(job.rounds) for job in begun]
    return seconds


class Alone:
    """Jobs one at a time. Rounds of the same size are counted together, as a simulation would be slow to repeat."""

    def __init__(self, jobs: Sequence[SimulatedJob]) -> None:
        counted = [Counter((round_.rows, round_.depth) for round_ in job.rounds) for job in jobs]
        self._sizes = sorted(set(itertools.chain(*counted)))
        self._counts = np.array([[sizes[size] for size in self._sizes] for sizes in counted], dtype=np.float64)
        self._prefill = np.array([job.prefill_seconds for job in jobs])
        self._prompt_tokens = np.array([job.prompt_tokens for job in jobs])

    def seconds(self, costs: Costs) -> np.ndarray:
        """`[num_jobs]` seconds: the same as `simulate` of each with one place."""
        rounds = np.array([costs.round_seconds(1, rows, depth) for rows, depth in self._sizes])
        seconds: np.ndarray = self._prefill + costs.reading * self._prompt_tokens + self._counts @ rounds
        return seconds


def make_units(items: Sequence[T], batch: int) -> list[list[T]]:
    """The items in the groups that run, one after the other: single ones, or enough to fill a batch twice.

    Units of a batch go round the items until each item had its turn.
    """
    if batch == 1:
        return [[item] for item in items]
    size = batch * REQUESTS_PER_SLOT
    count = max(-(-len(items) // size), FEWEST_UNITS)
    endless = itertools.cycle(items)
    return [list(itertools.islice(endless, size)) for _ in range(count)]
