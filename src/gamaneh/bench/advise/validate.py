"""Runs the pick for real, alternated with plain decoding and with what would be served, and times whole answers.

Formulas
    speed-up    sum of plain seconds / sum of speculative seconds over the units, prompts included
    interval    95 % of the speed-ups with units drawn again with replacement (Efron 1979)
    deviation   |predicted / measured - 1|
Units are those of the prediction. The order of the ways is turned from unit to unit, and a first unit,
answered each way, is dropped. Where requests have to come more than once to fill a batch, each time they have
a salt of their own, so that neither the prefix cache nor a proposer that learns from answers knows them.
"""

from __future__ import annotations

import itertools
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gamaneh import core
from gamaneh.bench.advise.recording import limited
from gamaneh.bench.advise.simulate import make_units
from gamaneh.bench.advise.workload import WorkloadRequest
from gamaneh.bench.result import Interval
from gamaneh.bench.stats import ratio_of_sums
from gamaneh.bench.time_limit import INTERRUPTED, OUT_OF_TIME, TimeLimit
from gamaneh.engine.llm import LLM
from gamaneh.errors import InvalidRequest
from gamaneh.metrics.percentiles import Percentiles, percentiles
from gamaneh.metrics.timeline import RequestTimeline
from gamaneh.options import SamplingParams

MOST_PASSES = 2
"""Passes through all units. The second one is run where the first does not agree with the prediction, or leaves it
open whether there is a gain."""

FEWEST_RUN = 2
"""Units that are run however little time there is: a single one has no interval."""

MOST_DEVIATION = 0.15
"""Between prediction and measurement, from which on no verdict is given."""

PLAIN_WAY = "plain"
FIXED_WAY = "fixed"
SERVED_WAY = "served"


@dataclass(frozen=True, slots=True)
class Latencies:
    """Times of one way of decoding, in seconds.

    Args:
        e2e, ttft, tpot: one value for each request.
        itl: the gaps between deliveries of all requests.
    """

    e2e: Percentiles
    ttft: Percentiles
    tpot: Percentiles
    itl: Percentiles


@dataclass(frozen=True, slots=True)
class Validation:
    """A real run of the pick.

    Args:
        batch: requests at once.
        predicted: speed-up of the pick with its fixed draft length.
        measured: the same, measured.
        served: measured speed-up of what `gamaneh serve` would do, draft lengths adapting.
        units, passes: of one or several requests; how often all of them ran. The fastest pass of each unit counts.
        differing: answers, of either, that are not the plain ones; `answers` were compared.
        latencies: by way.
        stopped: why fewer units ran than there are; None if all did.
    """

    batch: int
    units: int
    passes: int
    predicted: float
    measured: Interval
    served: Interval
    answers: int
    differing: int
    latencies: Mapping[str, Latencies]
    stopped: str | None = None

    @property
    def deviation(self) -> float:
        return abs(self.predicted / self.measured.value - 1.0)

    @property
    def agrees(self) -> bool:
        """Prediction and measurement are close enough to rely on."""
        return self.deviation <= MOST_DEVIATION

    @property
    def settled(self) -> bool:
        """Another pass could hardly change the verdict."""
        return self.agrees and not self.better.low <= 1.0 <= self.better.high

    @property
    def better(self) -> Interval:
        """The faster of the two."""
        return max(self.measured, self.served, key=lambda interval: interval.value)


@dataclass(frozen=True, slots=True)
class Salted:
    """A request, in one of the passes through all of them."""

    request: WorkloadRequest
    salt: str


@dataclass(slots=True)
class _Way:
    """One way of decoding, with what its engine tells about requests.

    Args:
        passes: seconds of each unit, in each pass through them.
    """

    llm: LLM
    timelines: list[RequestTimeline] = field(default_factory=list)
    passes: list[list[float]] = field(default_factory=lambda: [[]])
    tokens: list[list[int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.llm.engine.request_observers.append(self.timelines.append)

    @property
    def seconds(self) -> list[float]:
        return fastest(self.passes)

    def answer(self, unit: Sequence[Salted], params: SamplingParams) -> None:
        """Answer one unit and keep what it took.

        Raises:
            InvalidRequest: a request cannot be answered.
        """
        engine = self.llm.engine
        started = time.perf_counter()
        answers: dict[str, list[int]] = {self._add(one, params): [] for one in unit}
        while engine.has_work:
            for output in engine.step():
                answers[output.request_id] += output.tokens
                if output.error is not None:
                    raise InvalidRequest("prompt", "must be one the model can answer", output.error)
        self.passes[-1].append(time.perf_counter() - started)
        self.tokens += answers.values()

    def warm_up(self, unit: Sequence[Salted], params: SamplingParams) -> None:
        """Answer one unit and forget it."""
        self.answer([Salted(one.request, "warm-up") for one in unit], params)
        self.timelines.clear()
        self.passes.clear()
        self.tokens.clear()

    def _add(self, one: Salted, params: SamplingParams) -> str:
        reference = one.request.reference
        return self.llm.engine.add(
            core.Request(
                one.request.prompt,
                limited(params, one.request),
                reference=self.llm.tokenizer.encode(reference, special=False) if reference else (),
                salt=one.salt,
            )
        )


def validate(
    ways: Mapping[str, LLM],
    requests: Sequence[WorkloadRequest],
    params: SamplingParams,
    batch: int,
    predicted: float,
    limit: TimeLimit,
) -> Validation:
    """Answer all requests each way, alternated; once more if that settles nothing and the time suffices.

    Args:
        ways: `plain`, `fixed` and `served`; their engines run `batch` requests at once.
        limit: no unit begins after it, but for the first ones.

    Raises:
        InvalidRequest: a request cannot be answered.
        KeyboardInterrupt: before enough was run.
    """
    running = {name: _Way(llm) for name, llm in ways.items()}
    for way in running.values():
        way.warm_up(salted_units(requests, batch)[0], params)
    stopped: str | None = None
    try:
        for number in range(MOST_PASSES):
            began = limit.left
            whole = _pass(list(running.values()), salted_units(requests, batch, number), params, limit)
            stopped = None if whole else OUT_OF_TIME
            outcome = _outcome(running, batch, predicted, stopped)
            if outcome.settled or stopped or limit.left < began - limit.left:
                return outcome
    except KeyboardInterrupt:
        _drop_unfinished(list(running.values()))
        stopped = INTERRUPTED
    return _outcome(running, batch, predicted, stopped)


def salted_units(requests: Sequence[WorkloadRequest], batch: int, number: int = 0) -> list[list[Salted]]:
    """The units of the prediction, with a new salt whenever a request comes again; `number` tells passes apart."""
    turns = itertools.count()
    return [
        [Salted(request, f"{number}.{next(turns) // len(requests)}") for request in unit]
        for unit in make_units(requests, batch)
    ]


def fastest(passes: Sequence[Sequence[float]]) -> list[float]:
    """Of each unit the fastest pass: what disturbs a machine only ever slows it down."""
    return [min(times) for times in zip(*passes, strict=True)]


def _pass(ways: Sequence[_Way], units: Sequence[Sequence[Salted]], params: SamplingParams, limit: TimeLimit) -> bool:
    """All units, each way, in an order that turns; return whether the time sufficed. A second pass is not cut."""
    for way in ways:
        way.passes.append([])
    for number, unit in enumerate(units):
        if limit.over and number >= FEWEST_RUN and len(ways[0].passes) == 1:
            return False
        first = number % len(ways)
        for way in (*ways[first:], *ways[:first]):
            way.answer(unit, params)
    return True


def _drop_unfinished(ways: Sequence[_Way]) -> None:
    """Forget a unit that not every way answered, and a second pass that was not whole.

    Raises:
        KeyboardInterrupt: too little is left.
    """
    whole = min(len(way.passes[-1]) if way.passes else 0 for way in ways)
    for way in ways:
        if len(way.passes) > 1:
            way.passes.pop()
        elif whole >= FEWEST_RUN:
            del way.passes[-1][whole:]
        else:
            raise KeyboardInterrupt


def _outcome(running: Mapping[str, _Way], batch: int, predicted: float, stopped: str | None) -> Validation:
    plain, fixed, served = (running[name] for name in (PLAIN_WAY, FIXED_WAY, SERVED_WAY))
    return Validation(
        batch=batch,
        units=len(plain.seconds),
        passes=len(plain.passes),
        predicted=predicted,
        measured=ratio_of_sums(plain.seconds, fixed.seconds),
        served=ratio_of_sums(plain.seconds, served.seconds),
        answers=len(fixed.tokens) + len(served.tokens),
        differing=_differing(plain, fixed) + _differing(plain, served),
        latencies={name: _latencies(way.timelines) for name, way in running.items()},
        stopped=stopped,
    )


def _differing(plain: _Way, other: _Way) -> int:
    return sum(one != two for one, two in zip(plain.tokens, other.tokens, strict=False))


def _latencies(timelines: Sequence[RequestTimeline]) -> Latencies:
    known: dict[str, list[float]] = defaultdict(list)
    for timeline in timelines:
        for name in ("e2e", "ttft", "tpot"):
            value = getattr(timeline, name)
            known[name] += [] if value is None else [value]
        known["itl"] += timeline.inter_token_latencies
    return Latencies(**{name: percentiles(known[name]) for name in ("e2e", "ttft", "tpot", "itl")})
