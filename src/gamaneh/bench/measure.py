"""The measuring loop: ways x requests x rounds -> records, the ways in turns, warm-ups dropped, failures noted.

A round is cut into turns, and the ways take them in an order that is reversed from turn to turn: A B, B A,
A B ... A machine whose speed drifts then favours none. One request at a time makes turns of one request; several
at once make longer ones, since each turn begins and ends with an engine that is not full; arrivals by the
clock make one turn of the whole round.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from gamaneh.bench.prompt_set import Prompt, hash_prompts
from gamaneh.bench.record import (
    Ask,
    BenchClient,
    Counters,
    EmptyAnswer,
    Key,
    MeasuredLoad,
    Record,
    RequestFailed,
    Stretch,
    Way,
)
from gamaneh.bench.result import Load, Pattern, Price, Slo
from gamaneh.bench.stats import is_saturated, stays
from gamaneh.bench.time_limit import OUT_OF_TIME, TimeLimit, broke_off
from gamaneh.errors import GamanehError, InvalidOption
from gamaneh.options import SamplingParams

TURN = 4
"""Requests of a turn, as a multiple of those under way at once."""

MOST_FAILURES = 5
"""Failed requests of one way in a row that end the run."""

SWEEP_STEPS = 12
"""Most loads of a sweep; each has twice the rate of the one before."""

Tick = Callable[[int, int], None]
"""Called with requests answered and requests in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlan:
    """What is measured. All ways are given the same requests.

    Args:
        source: where the prompts came from.
        params: of every request; with a seed, request number i has the seed plus i.
        loads: one after the other.
        sweep: stop after the first load that no way can serve.
        warmups: requests of each way and load that are asked before and dropped.
        seed: of the order of the prompts and of the arrivals.
        recorded: seconds at which each prompt was recorded, for `replay`.
    """

    source: str
    prompts: Sequence[Prompt]
    params: SamplingParams
    loads: Sequence[Load]
    sweep: bool = False
    warmups: int = 1
    seed: int = 0
    recorded: Sequence[float] = ()
    slo: Slo | None = None
    price: Price | None = None

    def __post_init__(self) -> None:
        if not self.prompts:
            raise InvalidOption("prompts", "must be at least one", 0)
        if self.warmups < 0:
            raise InvalidOption("warmups", "must be at least 0", self.warmups)

    @property
    def comparable(self) -> bool:
        """Whether two exact ways can be expected to agree token for token."""
        return self.params.greedy or self.params.seed is not None

    @property
    def prompts_sha256(self) -> str:
        """Return the hash of the texts in their order."""
        return hash_prompts(prompt.prompt for prompt in self.prompts)

    @property
    def requests(self) -> int:
        """Return the requests that each way is measured in, all loads together."""
        return sum(load.requests * load.rounds for load in self.loads)

    def order(self, load: Load) -> list[Prompt]:
        """Return the prompts of one round, shuffled so that categories mix; a recording keeps its order."""
        chosen = list(self.prompts)
        if load.pattern != "replay":
            random.Random(self.seed).shuffle(chosen)
        return list(islice(itertools.cycle(chosen), load.requests))

    def ask(self, prompt: Prompt, number: int, *, speculate: bool, salt: str) -> Ask:
        """Return request number `number` of a round.

        Args:
            salt: of the round and way. Prompts come back in each round: a cached prefix, or a store of
                earlier answers, would know them, as it knows nothing that is asked once.
        """
        seed = None if self.params.seed is None else self.params.seed + number
        return Ask(prompt.prompt, replace(self.params, seed=seed), speculate, salt, prompt.reference)


def closed_loads(concurrencies: Sequence[int], requests: int, rounds: int) -> list[Load]:
    """Return closed loops.

    Raises:
        InvalidOption: a number is not at least 1.
    """
    return [_checked(Load("closed", float(level), max(requests, level), rounds)) for level in concurrencies]


def open_loads(
    pattern: Pattern, rates: Sequence[float], requests: int, rounds: int, burstiness: float, *, sweep: bool
) -> list[Load]:
    """Return loads by the clock; a sweep goes on from its last rate by doubling it.

    Raises:
        InvalidOption: a number is out of range.
    """
    levels = list(rates)
    if sweep:
        levels += [rates[-1] * 2**step for step in range(1, SWEEP_STEPS - len(levels) + 1)]
    return [_checked(Load(pattern, rate, requests, rounds, burstiness)) for rate in levels]


def replay_load(recorded: Sequence[float], rounds: int) -> Load:
    """Return the load of a recording, as it was; its rate is gaps / seconds between first and last.

    Raises:
        InvalidOption: the prompts carry no times, or all came at once.
    """
    if len(recorded) < 2:
        raise InvalidOption("trace", "must have prompts with the key at, two or more", len(recorded))
    span = recorded[-1] - recorded[0]
    return _checked(Load("replay", (len(recorded) - 1) / span if span > 0 else 0.0, len(recorded), rounds))


def _checked(load: Load) -> Load:
    name = "concurrency" if load.pattern == "closed" else "rate"
    for entry, value in ((name, load.level), ("burstiness", load.burstiness)):
        if not 0 < value < float("inf"):
            raise InvalidOption(entry, "must be a number above 0", value)
    for entry, count in (("requests", load.requests), ("rounds", load.rounds)):
        if count < 1:
            raise InvalidOption(entry, "must be at least 1", count)
    return load


def arrivals(load: Load, seed: int, recorded: Sequence[float] = ()) -> list[float]:
    """Return when the requests of an open load come: seconds after the start, ascending, the first at 0.

    `constant` leaves 1 / rate between two, `poisson` draws the gaps from an exponential distribution
    with that mean, and `gamma` from a gamma distribution with that mean and shape `burstiness`: 1
    is Poisson, less is burstier. Seeded, so that all ways get the same.

    Args:
        recorded: of `replay`: seconds at which the requests were recorded, in their order.

    Raises:
        InvalidOption: `load` is a closed loop, or the recording does not fit.
    """
    if load.pattern == "closed":
        raise InvalidOption("pattern", "must be one whose requests arrive by the clock", load.pattern)
    if load.pattern == "replay":
        if len(recorded) != load.requests or list(recorded) != sorted(recorded):
            raise InvalidOption("trace", "must hold one ascending time for each request", len(recorded))
        return [at - recorded[0] for at in recorded]
    gaps = np.ones(load.requests)
    if load.pattern != "constant":
        shape = load.burstiness if load.pattern == "gamma" else 1.0
        gaps = np.random.default_rng(seed).gamma(shape, 1.0 / shape, load.requests)
    return [0.0, *np.cumsum(gaps[:-1] / load.level).tolist()]


async def answer_one(client: BenchClient, ask: Ask, due: float | None = None) -> Record:
    """Read one answer to its end.

    Args:
        due: when it was to be sent; None for now.

    Raises:
        RequestFailed: it was not answered to its end.
    """
    record = Record(time.perf_counter() if due is None else due)
    await _read(client, ask, record)
    return record


async def answer_or_fail(client: BenchClient, ask: Ask, due: float | None = None) -> Record:
    """Read one answer as far as it goes; what goes wrong is its `error`, of the kind `reason`."""
    record = Record(time.perf_counter() if due is None else due)
    try:
        await _read(client, ask, record)
        if not record.deliveries:
            raise EmptyAnswer("the answer is empty")
    except GamanehError as error:
        record.error, record.reason = str(error), getattr(error, "reason", RequestFailed.reason)
    return record


async def _read(client: BenchClient, ask: Ask, record: Record) -> None:
    async with aclosing(client.stream(ask)) as deliveries:
        async for delivery in deliveries:
            record.take(delivery, time.perf_counter())


@dataclass(slots=True)
class Traffic:
    """Answers to many requests by their number, as far as they came, and the seconds that they took together."""

    records: dict[int, Record] = field(default_factory=dict)
    seconds: float = 0.0

    async def closed_loop(self, client: BenchClient, asks: Sequence[Ask], concurrency: int) -> None:
        """Answer all requests, `concurrency` at a time: as one ends, the next is sent."""
        waiting = iter(enumerate(asks))

        async def worker() -> None:
            for at, ask in waiting:
                self.records[at] = await answer_or_fail(client, ask)

        await self._timed([worker() for _ in range(min(concurrency, len(asks)))])

    async def open_loop(self, client: BenchClient, asks: Sequence[Ask], offsets: Sequence[float]) -> None:
        """Send each request when it is due, whoever is still waiting.

        A request counts as sent when it was due: a client that falls behind must not hide the time.

        Args:
            offsets: seconds after the start, ascending, one for each request.
        """
        started = time.perf_counter()

        async def one(at: int, offset: float) -> None:
            await asyncio.sleep(started + offset - time.perf_counter())
            self.records[at] = await answer_or_fail(client, asks[at], started + offset)

        await self._timed([one(at, offset) for at, offset in enumerate(offsets)])

    async def _timed(self, work: Sequence[Coroutine[None, None, None]]) -> None:
        started = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                for each in work:
                    group.create_task(each)
        finally:
            self.seconds = time.perf_counter() - started


class Bench:
    """Runs a plan.

    Args:
        ways: what takes turns, under names of their own.
        tick: tells how far it is.
        keep: called after each load, to save what there is.
        limit: no turn begins after it; loads that are still to come share what is left.

    Attributes:
        measured: what there is so far; a turn that was broken off is in it as far as it came.
        stopped: why the run ended before its time.
    """

    def __init__(
        self,
        ways: Sequence[Way],
        plan: BenchPlan,
        tick: Tick = lambda done, total: None,
        keep: Callable[[Bench], None] = lambda bench: None,
        limit: TimeLimit | None = None,
    ) -> None:
        self.ways, self.plan, self.tick, self.keep = ways, plan, tick, keep
        self.limit = limit or TimeLimit()
        self.measured: list[MeasuredLoad] = []
        self.stopped: str | None = None
        self._failed = {way.name: 0 for way in ways}
        self._run = uuid.uuid4().hex  # a server may remember an earlier run
        self._done = 0
        self._total = len(ways) * sum(plan.warmups + load.requests * load.rounds for load in plan.loads)

    async def run(self) -> None:
        """Measure all loads, or as many as go well."""
        for number, load in enumerate(self.plan.loads):
            await self._measure(load, self.limit.share(1 / (len(self.plan.loads) - number)))
            self.keep(self)
            if broke_off(self.stopped) or (self.plan.sweep and self._nobody_keeps_up()):
                return

    async def _measure(self, load: Load, limit: TimeLimit) -> None:
        await self._warm_up(load)
        measured = MeasuredLoad(load, {way.name: [] for way in self.ways})
        self.measured.append(measured)
        for number in range(load.rounds):
            for turn, slots in enumerate(_turns(load)):
                if limit.over and measured.begun:
                    self.stopped = OUT_OF_TIME
                    return
                for way in self.ways if (number + turn) % 2 == 0 else self.ways[::-1]:
                    await self._turn(way, measured, number, slots)
                if broke_off(self.stopped):
                    return

    async def _warm_up(self, load: Load) -> None:
        """One request after the other, of those that will be measured."""
        for way in self.ways:
            for number, prompt in enumerate(islice(self.plan.order(load), self.plan.warmups)):
                ask = self.plan.ask(prompt, number, speculate=way.speculate, salt=self._salt(way, "warm-up"))
                await answer_or_fail(way.client, ask)
                self._count(1)

    def _salt(self, way: Way, round_name: object) -> str:
        """Of a round of one way at the load that is measured now."""
        return f"{self._run}-{way.name}-{len(self.measured)}-{round_name}"

    async def _turn(self, way: Way, measured: MeasuredLoad, number: int, slots: range) -> None:
        load, prompts, salt = measured.load, self.plan.order(measured.load), self._salt(way, number)
        asks = [self.plan.ask(prompts[slot], slot, speculate=way.speculate, salt=salt) for slot in slots]
        traffic, before, after = Traffic(), await way.counters(), None
        try:
            if load.pattern == "closed":
                await traffic.closed_loop(way.client, asks, int(load.level))
            else:
                await traffic.open_loop(way.client, asks, arrivals(load, self.plan.seed, self.plan.recorded))
            after = await way.counters()
        finally:
            records = [traffic.records[at] for at in sorted(traffic.records)]
            for at, record in zip(sorted(traffic.records), records, strict=True):
                record.key, record.prompt = Key(number, slots[at]), prompts[slots[at]]
            if records:
                measured.stretches[way.name].append(_stretch(records, traffic.seconds, before, after))
        self._count(len(records))
        self._note_failures(way, records)

    def _note_failures(self, way: Way, records: Sequence[Record]) -> None:
        for record in records:
            self._failed[way.name] = 0 if record.error is None else self._failed[way.name] + 1
            if self._failed[way.name] >= MOST_FAILURES and not broke_off(self.stopped):
                told = f"{MOST_FAILURES} requests in a row failed on the {way.name} side"
                self.stopped = f"{told}, the last one with: {record.error}"

    def _nobody_keeps_up(self) -> bool:
        return all(is_saturated(stays(self.measured[-1].records(way.name))) for way in self.ways)

    def _count(self, requests: int) -> None:
        self._done += requests
        self.tick(self._done, self._total)


def _turns(load: Load) -> Iterator[range]:
    """Yield the slots of each turn."""
    size = load.requests
    if load.pattern == "closed":
        size = 1 if load.level == 1 else TURN * int(load.level)
    return (range(at, min(at + size, load.requests)) for at in range(0, load.requests, size))


def _stretch(records: Sequence[Record], seconds: float, before: Counters | None, after: Counters | None) -> Stretch:
    if after is None:
        return Stretch(records, seconds)
    earlier = None if before is None else before.cpu_seconds
    return Stretch(
        records=records,
        seconds=seconds,
        counts=None if after.counts is None else after.counts.since(None if before is None else before.counts),
        cpu_seconds=None if earlier is None or after.cpu_seconds is None else after.cpu_seconds - earlier,
    )
