"""What the laps say: speeds by way, ratios with intervals, step times beside the machine's bandwidth.

Formulas
    ratio       speed of one way / speed of another in the same case and round; geometric mean over the cases of each
                case's own geometric mean, with a 95 % bootstrap interval over the cases (of one case: over its rounds)
    best        of their ways the one with the largest geometric mean speed in that group, chosen afterwards in their
                favour; of ours always `auto`
    ttft ratio  seconds of theirs / seconds of ours: above 1 ours is sooner
    step        1 / speed of plain decoding of one request
    bandwidth   bytes of the target's file / step / bytes per second that the machine reads
    aims        what the project wants to reach on a model of at least `LARGE_BYTES`, and on smaller ones
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gamaneh.bench.result import Interval
from gamaneh.bench.stats import paired_ratio
from tools.race.contestants import AUTO, OURS, PLAIN, THEIRS
from tools.race.laps import BATCH, DECODE, PROMPT, Lap

OUR_PLAIN, OUR_BEST, THEIR_PLAIN = f"{OURS} {PLAIN}", f"{OURS} {AUTO}", f"{THEIRS} {PLAIN}"
ALL = "all"

LARGE_BYTES = 500_000_000
PLAIN_AIMS = {True: 1.3, False: 1.0}
"""By whether the target is large: plain against plain, one request."""

BEST_AIMS = {"editing": 3.0, "code": 2.0, "chat": 1.3}
"""Best against best, greedy."""

BATCH_AIMS = {"8": 2.0}
PROMPT_AIM = 1.0
GROWTH_AIM = 1.6
"""Most that a step of 8 requests may take of a step of one."""

LOAD_AIM = 3.0
STEP_AIM = 0.8
"""Least share of the machine's bandwidth: a step takes at most 1.25 times bytes / bandwidth."""


@dataclass(frozen=True, slots=True)
class Aim:
    """One figure and the bound that it is held against."""

    figure: str
    value: float
    bound: float
    at_least: bool = True

    @property
    def met(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound


@dataclass(frozen=True, slots=True)
class Group:
    """All ways in one group of an event.

    Args:
        speeds, ttfts: way -> median.
        their_best: name of their fastest way.
        plain, best: ours / theirs; our_gain, their_gain: best / plain of a side. None where a side was not asked.
        ttft: theirs / ours, both plain.
    """

    event: str
    group: str
    temperature: float
    speeds: Mapping[str, float]
    ttfts: Mapping[str, float]
    their_best: str | None
    plain: Interval | None
    best: Interval | None
    our_gain: Interval | None
    their_gain: Interval | None
    ttft: Interval | None


@dataclass(frozen=True, slots=True)
class StepTime:
    """Plain decoding of one request.

    Args:
        bandwidth_share: of what the machine reads in a second.
    """

    side: str
    seconds: float
    bytes_per_second: float
    bandwidth_share: float


def groups_of(laps: Sequence[Lap]) -> list[Group]:
    """Every group, and all groups of decoding together for each temperature."""
    by_group: dict[tuple[str, str, float], list[Lap]] = defaultdict(list)
    for lap in laps:
        by_group[lap.event, lap.group, lap.temperature].append(lap)
        if lap.event == DECODE:
            by_group[DECODE, ALL, lap.temperature].append(lap)
    ordered = sorted(by_group.items(), key=lambda item: (item[0][0], item[0][2], item[0][1] == ALL))
    return [_group(*key, chosen) for key, chosen in ordered]


def step_times(groups: Sequence[Group], target_bytes: int, bandwidth: float) -> list[StepTime]:
    """Of both sides, over all greedy prompts."""
    whole = next((one for one in groups if (one.event, one.group, one.temperature) == (DECODE, ALL, 0.0)), None)
    speeds = {} if whole is None else {side: whole.speeds.get(f"{side} {PLAIN}") for side in (OURS, THEIRS)}
    return [
        StepTime(side, 1.0 / speed, target_bytes * speed, target_bytes * speed / bandwidth)
        for side, speed in speeds.items()
        if speed is not None
    ]


def growth(groups: Sequence[Group], way: str) -> dict[str, float]:
    """Seconds of a step of so many requests / seconds of a step of one."""
    speeds = {int(one.group): one.speeds[way] for one in groups if one.event == BATCH and way in one.speeds}
    return {} if 1 not in speeds else {str(size): size / speed * speeds[1] for size, speed in sorted(speeds.items())}


def aims_of(
    groups: Sequence[Group], steps: Sequence[StepTime], ready_seconds: float, target_bytes: int
) -> Iterator[Aim]:
    """The aims that were measured."""
    large = target_bytes >= LARGE_BYTES
    for one in (one for one in groups if one.temperature == 0.0):
        where = (one.event, one.group)
        if where == (DECODE, ALL) and one.plain is not None:
            yield Aim("plain against plain", one.plain.value, PLAIN_AIMS[large])
        if one.event == DECODE and one.group in BEST_AIMS and one.best is not None and large:
            yield Aim(f"best against best, {one.group}", one.best.value, BEST_AIMS[one.group])
        if one.event == BATCH and one.group in BATCH_AIMS and one.plain is not None and large:
            yield Aim(f"{one.group} requests at once", one.plain.value, BATCH_AIMS[one.group])
        if one.event == PROMPT and one.plain is not None:
            yield Aim(f"prompt of {one.group} tokens", one.plain.value, PROMPT_AIM)
    ratio = growth(groups, OUR_PLAIN).get("8")
    if ratio is not None:
        yield Aim("step of 8 requests over one", ratio, GROWTH_AIM, at_least=False)
    yield from (
        Aim("share of the bandwidth in a plain step", step.bandwidth_share, STEP_AIM)
        for step in steps
        if step.side == OURS
    )
    yield Aim("seconds until ready", ready_seconds, LOAD_AIM, at_least=False)


def describe(groups: Sequence[Group]) -> Iterator[str]:
    """A table for each event."""
    for event in dict.fromkeys(one.event for one in groups):
        yield f"== {event}, tokens/s (median), ratios ours / theirs with 95 % intervals"
        for one in (one for one in groups if one.event == event):
            speeds = ", ".join(f"{way} {speed:.1f}" for way, speed in one.speeds.items())
            yield f"{one.group}, temperature {one.temperature:g}: {speeds}"
            told = {
                "plain against plain": one.plain,
                f"{OUR_BEST} against {one.their_best}": one.best,
                "our gain": one.our_gain,
                "their gain": one.their_gain,
                "time to first token, theirs / ours": one.ttft,
            }
            yield from (f"    {name}: {_shown(ratio)}" for name, ratio in told.items() if ratio is not None)


def as_data(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Plain data."""
    return [asdict(one) for one in groups]


def _group(event: str, name: str, temperature: float, laps: Sequence[Lap]) -> Group:
    ways = list(dict.fromkeys(lap.way for lap in laps))
    theirs = {way: _mean_speed(laps, way) for way in ways if way.startswith(THEIRS)}
    best = max(theirs, key=lambda way: theirs[way]) if theirs else None
    ttft = _ratio(laps, THEIR_PLAIN, OUR_PLAIN, lambda lap: lap.ttft)
    return Group(
        event=event,
        group=name,
        temperature=temperature,
        speeds={way: statistics.median(lap.speed for lap in laps if lap.way == way) for way in ways},
        ttfts={way: statistics.median(lap.ttft for lap in laps if lap.way == way) for way in ways},
        their_best=best,
        plain=_ratio(laps, OUR_PLAIN, THEIR_PLAIN),
        best=_ratio(laps, OUR_BEST, best),
        our_gain=_ratio(laps, OUR_BEST, OUR_PLAIN),
        their_gain=None if best == THEIR_PLAIN else _ratio(laps, best, THEIR_PLAIN),
        ttft=ttft,
    )


def _mean_speed(laps: Sequence[Lap], way: str) -> float:
    return math.exp(statistics.fmean(math.log(lap.speed) for lap in laps if lap.way == way))


def _ratio(
    laps: Sequence[Lap], one: str | None, other: str | None, value: Any = lambda lap: lap.speed
) -> Interval | None:
    """By case, over the rounds in which both were measured."""
    measured = {(lap.way, lap.case, lap.round): value(lap) for lap in laps}
    ratios: dict[str, list[float]] = defaultdict(list)
    for (way, case, number), first in measured.items():
        second = measured.get((other or "", case, number))
        if way == one and second is not None:
            ratios[case].append(first / second)
    return paired_ratio(ratios)


def _shown(ratio: Interval) -> str:
    return f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
