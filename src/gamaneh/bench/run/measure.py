"""The run itself: both sides in turns, warm-ups dropped, failures noted.

A round is cut into stretches, and the sides take turns by stretch: A B, B A, A B ... A machine whose
speed drifts then favours neither. One request at a time makes stretches of one request; several at
once make longer ones, since each stretch begins and ends with an engine that is not full; arrivals by
the clock make one stretch of the whole round.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from gamaneh.bench.counters import Counters, difference
from gamaneh.bench.counts import Counts
from gamaneh.bench.prompt_set import Prompt
from gamaneh.bench.result import Load
from gamaneh.bench.run.plan import Plan
from gamaneh.bench.run.sides import Side, SideName, Sides
from gamaneh.bench.saturation import Stay, is_saturated
from gamaneh.bench.traffic import Answer, Ask, Traffic, answer_or_fail, closed_loop, open_loop

STRETCH = 4
"""Requests of a stretch, as a multiple of those under way at once."""

MOST_FAILURES = 5
"""Failed requests of one side in a row that end the run."""

Tick = Callable[[int, int], None]
"""Called with requests answered and requests in all."""


class Key(NamedTuple):
    """Tells which answers of the two sides belong together."""

    round: int
    slot: int


@dataclass(frozen=True, slots=True)
class Record:
    """One answer of a measured round."""

    key: Key
    prompt: Prompt
    answer: Answer

    @property
    def whole(self) -> bool:
        """Answered to its end, with at least one token."""
        return self.answer.error is None and bool(self.answer.deliveries)


@dataclass(frozen=True, slots=True)
class Stretch:
    """What one side did in one turn.

    Args:
        counts, cpu_seconds: what its counters say; None where it has none.
    """

    records: Sequence[Record]
    seconds: float
    counts: Counts | None
    cpu_seconds: float | None


@dataclass(slots=True)
class Measured:
    """Everything of one load."""

    load: Load
    stretches: dict[SideName, list[Stretch]] = field(default_factory=lambda: {"plain": [], "speculative": []})

    def records(self, side: SideName) -> list[Record]:
        """Its answers in the order of the requests, failed ones too."""
        records = [record for stretch in self.stretches[side] for record in stretch.records]
        return sorted(records, key=lambda record: record.key)

    def pairs(self) -> Iterator[tuple[Record, Record]]:
        """Plain and speculative answers to the same request, where both are whole."""
        plain = {record.key: record for record in self.records("plain") if record.whole}
        for record in self.records("speculative"):
            if record.whole and record.key in plain:
                yield plain[record.key], record

    def stays(self, side: SideName) -> list[Stay]:
        """When its requests of the last round came and left."""
        whole = [record for record in self.records(side) if record.whole]
        last = [record.answer for record in whole if record.key.round == whole[-1].key.round]
        return [Stay(answer.sent, answer.deliveries[-1]) for answer in last]


class Bench:
    """Runs a plan.

    Args:
        tick: tells how far it is.
        keep: called after each load, to save what there is.

    Attributes:
        measured: what there is so far.
        stopped: why the run ended before its time.
    """

    def __init__(
        self,
        sides: Sides,
        plan: Plan,
        tick: Tick = lambda done, total: None,
        keep: Callable[[Bench], None] = lambda bench: None,
    ) -> None:
        self.sides, self.plan, self.tick, self.keep = sides, plan, tick, keep
        self.measured: list[Measured] = []
        self.stopped: str | None = None
        self._failed: dict[SideName, int] = {"plain": 0, "speculative": 0}
        self._run = uuid.uuid4().hex  # a server may remember an earlier run
        self._done = 0
        self._total = 2 * sum(plan.warmups + load.requests * load.rounds for load in plan.loads)

    async def run(self) -> None:
        """Measure all loads, or as many as go well."""
        for load in self.plan.loads:
            await self._measure(load)
            self.keep(self)
            if self.stopped or (self.plan.sweep and self._nobody_keeps_up()):
                return

    async def _measure(self, load: Load) -> None:
        await self._warm_up(load)
        measured = Measured(load)
        self.measured.append(measured)
        for number in range(load.rounds):
            for turn, slots in enumerate(_stretches(load)):
                order = self.sides.both if (number + turn) % 2 == 0 else self.sides.both[::-1]
                for side in order:
                    measured.stretches[side.name].append(await self._stretch(side, load, number, slots))
                if self.stopped:
                    return

    async def _warm_up(self, load: Load) -> None:
        """One request after the other, of those that will be measured."""
        for side in self.sides.both:
            for number, prompt in enumerate(islice(self.plan.order(load), self.plan.warmups)):
                ask = self.plan.ask(prompt, number, speculate=side.speculate, salt=self._salt(side, "warm-up"))
                await answer_or_fail(side.client, ask)
                self._count(1)

    def _salt(self, side: Side, round_name: object) -> str:
        """Of a round of one side at the load that is measured now."""
        return f"{self._run}-{side.name}-{len(self.measured)}-{round_name}"

    async def _stretch(self, side: Side, load: Load, number: int, slots: range) -> Stretch:
        prompts = self.plan.order(load)
        before = await side.counters()
        salt = self._salt(side, number)
        asks = [self.plan.ask(prompts[slot], slot, speculate=side.speculate, salt=salt) for slot in slots]
        traffic = await self._traffic(side, load, asks)
        after = await side.counters()
        records = [
            Record(Key(number, slot), prompts[slot], answer)
            for slot, answer in zip(slots, traffic.answers, strict=True)
        ]
        self._count(len(records))
        self._note_failures(side, records)
        return Stretch(records, traffic.seconds, _counted(before, after), _cpu_seconds(before, after))

    async def _traffic(self, side: Side, load: Load, asks: Sequence[Ask]) -> Traffic:
        if load.pattern == "closed":
            return await closed_loop(side.client, asks, int(load.level), answer_or_fail)
        return await open_loop(side.client, asks, self.plan.arrivals(load), answer_or_fail)

    def _note_failures(self, side: Side, records: Sequence[Record]) -> None:
        for record in records:
            self._failed[side.name] = 0 if record.answer.error is None else self._failed[side.name] + 1
            if self._failed[side.name] >= MOST_FAILURES and self.stopped is None:
                self.stopped = (
                    f"{MOST_FAILURES} requests in a row failed on the {side.name} side, the last one with: "
                    f"{record.answer.error}"
                )

    def _nobody_keeps_up(self) -> bool:
        last = self.measured[-1]
        return all(is_saturated(last.stays(side.name)) for side in self.sides.both)

    def _count(self, requests: int) -> None:
        self._done += requests
        self.tick(self._done, self._total)


def _stretches(load: Load) -> list[range]:
    """Slots of each turn."""
    size = load.requests
    if load.pattern == "closed":
        size = 1 if load.level == 1 else STRETCH * int(load.level)
    return [range(at, min(at + size, load.requests)) for at in range(0, load.requests, size)]


def _counted(before: Counters | None, after: Counters | None) -> Counts | None:
    return None if after is None else difference(None if before is None else before.counts, after.counts)


def _cpu_seconds(before: Counters | None, after: Counters | None) -> float | None:
    if before is None or after is None or before.cpu_seconds is None or after.cpu_seconds is None:
        return None
    return after.cpu_seconds - before.cpu_seconds
