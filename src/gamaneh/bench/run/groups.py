"""Both sides on all prompts of a load, and on those of each category, language and length."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from gamaneh.bench.prompt_set import Prompt
from gamaneh.bench.result import ALL, Figures, Group, GroupKind, Point, Price, Saturation, Slo
from gamaneh.bench.run.figures import side_figures, whole_figures
from gamaneh.bench.run.measure import Measured, Record
from gamaneh.bench.saturation import growth, is_saturated
from gamaneh.bench.statistics import Interval, geometric_mean, paired_ratio
from gamaneh.bench.traffic import Answer

_KINDS: Mapping[GroupKind, Callable[[Prompt], str]] = {
    "category": lambda prompt: prompt.category,
    "language": lambda prompt: prompt.language,
    "length": lambda prompt: prompt.length,
}

Pair = tuple[Record, Record]


def make_point(measured: Measured, slo: Slo | None, price: Price | None) -> Point:
    """The figures of one load. A kind of group that holds all prompts in one is left out."""
    pairs = list(measured.pairs())
    plain, speculative = (whole_figures(measured.stretches[side], slo, price) for side in ("plain", "speculative"))
    return Point(
        load=measured.load,
        throughput=_throughput(measured),
        groups=(_group("all", ALL, pairs, plain, speculative), *_parts(measured, pairs)),
        saturation=None if measured.load.pattern == "closed" else _saturation(measured),
    )


def _parts(measured: Measured, pairs: Sequence[Pair]) -> Iterator[Group]:
    for kind, name_of in _KINDS.items():
        names = dict.fromkeys(name_of(record.prompt) for record in measured.records("plain"))
        if len(names) < 2:
            continue
        for name in sorted(names):
            plain, speculative = (
                side_figures([record for record in measured.records(side) if name_of(record.prompt) == name])
                for side in ("plain", "speculative")
            )
            yield _group(kind, name, [pair for pair in pairs if name_of(pair[0].prompt) == name], plain, speculative)


def _group(kind: GroupKind, name: str, pairs: Sequence[Pair], plain: Figures, speculative: Figures) -> Group:
    return Group(
        kind=kind,
        name=name,
        prompts=len({record.prompt.id for record, _ in pairs}),
        speedup=_speedup(pairs, lambda answer: answer.tpot),
        e2e_speedup=_speedup(pairs, lambda answer: answer.e2e),
        plain=plain,
        speculative=speculative,
    )


def _speedup(pairs: Sequence[Pair], seconds: Callable[[Answer], float | None]) -> Interval | None:
    """Plain / speculative, by prompt."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for plain, speculative in pairs:
        one, other = seconds(plain.answer), seconds(speculative.answer)
        if one and other:
            ratios[plain.prompt.id].append(one / other)
    return paired_ratio(ratios)


def _throughput(measured: Measured) -> Interval | None:
    """By turn: both sides were given the same requests in it."""
    turns = zip(measured.stretches["plain"], measured.stretches["speculative"], strict=False)
    speeds = [
        (
            sum(record.answer.tokens for record in plain.records) / plain.seconds,
            sum(record.answer.tokens for record in speculative.records) / speculative.seconds,
        )
        for plain, speculative in turns
    ]
    ratios = [other / one for one, other in speeds if one > 0 and other > 0]
    return geometric_mean(ratios) if ratios else None


def _saturation(measured: Measured) -> Saturation | None:
    plain, speculative = measured.stays("plain"), measured.stays("speculative")
    if not plain or not speculative:
        return None
    return Saturation(
        plain=is_saturated(plain),
        speculative=is_saturated(speculative),
        plain_growth=growth(plain),
        speculative_growth=growth(speculative),
    )
