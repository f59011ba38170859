"""Distributions of latencies, both sides of every run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gamaneh.bench.report.chart import Series
from gamaneh.bench.report.entries import Entry, sides
from gamaneh.bench.report.figure import Figure, Table
from gamaneh.bench.report.language import Language
from gamaneh.bench.report.lines import Line, Point, line_chart
from gamaneh.bench.report.scale import amount_axis, share_axis
from gamaneh.bench.result import Distribution, Figures

_CHOICES: Mapping[str, Callable[[Figures], Distribution | None]] = {
    "tpot": lambda figures: figures.tpot,
    "ttft": lambda figures: figures.ttft,
    "itl": lambda figures: figures.itl,
    "e2e": lambda figures: figures.e2e,
}
_TEXTS: Mapping[str, str] = {"itl": "gap_text"}
_RANKS = ((50, "p50"), (95, "p95"), (99, "p99"))


def latency_figures(entries: Sequence[Entry], language: Language) -> Iterator[Figure]:
    """One figure for each latency that was measured."""
    for name, choose in _CHOICES.items():
        curves = [curve for entry in entries for curve in _curves(entry, choose, language)]
        if curves:
            yield _figure(name, curves, language)


@dataclass(frozen=True, slots=True)
class _Curve:
    series: Series
    spread: Distribution


def _curves(entry: Entry, choose: Callable[[Figures], Distribution | None], language: Language) -> Iterator[_Curve]:
    for one, (_, figures) in zip(entry.side_series(language), sides(entry.whole), strict=True):
        spread = choose(figures)
        if spread is not None:
            yield _Curve(one, spread)


def _figure(name: str, curves: Sequence[_Curve], language: Language) -> Figure:
    x = amount_axis((curve.spread.p99 for curve in curves), language.seconds)
    y = share_axis(language.share)
    title = language.say(name)
    chart = line_chart([_line(curve, language) for curve in curves], x, y, language, title)
    text = language.say(_TEXTS.get(name, "latency_text"))
    return Figure(title, text, chart, [curve.series for curve in curves], _table(curves, language))


def _line(curve: _Curve, language: Language) -> Line:
    """Up to the 99th percentile: a single straggler must not squeeze all the others into a corner."""
    spread = curve.spread
    last = len(spread.quantiles) - 1
    shares = {at / last: value for at, value in enumerate(spread.quantiles[:-1])} | {0.99: spread.p99}
    marked = {rank / 100: f"P{rank}" for rank, _ in _RANKS}
    points = [
        Point(value, share, _told(curve, marked.get(round(share, 4)), value, language))
        for share, value in sorted(shares.items())
    ]
    return Line(curve.series, points)


def _told(curve: _Curve, rank: str | None, value: float, language: Language) -> str | None:
    return None if rank is None else f"{curve.series.label}, {rank}: {language.seconds(value)}"


def _table(curves: Sequence[_Curve], language: Language) -> Table:
    heads = [language.say("run"), language.say("count"), language.say("mean"), *(f"P{rank}" for rank, _ in _RANKS)]
    rows = [
        (
            curve.series.label,
            language.number(curve.spread.count, 0),
            language.seconds(curve.spread.mean),
            *(language.seconds(getattr(curve.spread, field)) for _, field in _RANKS),
        )
        for curve in curves
    ]
    return Table(heads, rows)
