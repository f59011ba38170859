"""Speed-up and throughput against load."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gamaneh.bench.report.chart import Series
from gamaneh.bench.report.entries import Entry, load_words, sides
from gamaneh.bench.report.figure import Figure, Table
from gamaneh.bench.report.language import Language
from gamaneh.bench.report.lines import Line, Point, line_chart
from gamaneh.bench.report.scale import Axis, amount_axis, level_axis, ratio_axis
from gamaneh.bench.result import Figures
from gamaneh.bench.result import Point as LoadPoint


def load_figures(entries: Sequence[Entry], language: Language) -> Iterator[Figure]:
    """Requests at once and requests per second apart, each where more than one level was measured."""
    for closed in (True, False):
        family = _Family.of(entries, closed)
        if len({point.load.level for points in family.points for point in points}) > 1:
            yield _gain(family, language)
            if any(point.whole.plain.tokens_per_second for points in family.points for point in points):
                yield _throughput(family, language)


@dataclass(frozen=True, slots=True)
class _Family:
    """Runs and their loads of one kind: levels are requests at once, or requests per second."""

    closed: bool
    entries: Sequence[Entry]
    points: Sequence[Sequence[LoadPoint]]

    @classmethod
    def of(cls, entries: Sequence[Entry], closed: bool) -> _Family:
        chosen = [(entry, cls._of_kind(entry, closed)) for entry in entries]
        known = [(entry, points) for entry, points in chosen if points]
        return cls(closed, [entry for entry, _ in known], [points for _, points in known])

    @staticmethod
    def _of_kind(entry: Entry, closed: bool) -> list[LoadPoint]:
        points = (point for point in entry.run.points if (point.load.pattern == "closed") == closed)
        return sorted(points, key=lambda point: point.load.level)

    def each(self) -> Iterator[tuple[Entry, Sequence[LoadPoint]]]:
        return zip(self.entries, self.points, strict=True)

    def axis(self, language: Language) -> Axis:
        title = language.say("closed_axis" if self.closed else "open_axis")
        levels = (point.load.level for points in self.points for point in points)
        return level_axis(levels, language.significant, title)


def _gain(family: _Family, language: Language) -> Figure:
    lines = [Line(entry.series, list(_ratios(points, language))) for entry, points in family.each()]
    bounds = [bound for line in lines for point in line.points for bound in (point.low, point.high)]
    y = ratio_axis([bound for bound in bounds if bound is not None], language.tick_times)
    title = language.say("load_title")
    chart = line_chart(lines, family.axis(language), y, language, title, reference=1.0)
    return Figure(title, language.say("load_text"), chart, [line.series for line in lines], _table(family, language))


def _ratios(points: Sequence[LoadPoint], language: Language) -> Iterator[Point]:
    for point in points:
        ratio = point.whole.speedup
        if ratio is not None:
            told = f"{load_words(point.load, language)}: {language.interval(ratio)}"
            yield Point(point.load.level, ratio.value, told, ratio.low, ratio.high)


def _throughput(family: _Family, language: Language) -> Figure:
    lines = [line for entry, points in family.each() for line in _rates(entry, points, language)]
    y = amount_axis((point.y for line in lines for point in line.points), language.significant)
    title = language.say("throughput_title")
    chart = line_chart(lines, family.axis(language), y, language, title)
    text = language.say("throughput_text")
    return Figure(title, text, chart, [line.series for line in lines], _table(family, language))


def _rates(entry: Entry, points: Sequence[LoadPoint], language: Language) -> Iterator[Line]:
    both = [sides(point.whole) for point in points]
    for side, one in enumerate(entry.side_series(language)):
        figures = [pair[side][1] for pair in both]
        yield Line(one, list(_rate_points(one, points, figures, language)))


def _rate_points(
    one: Series, points: Sequence[LoadPoint], figures: Sequence[Figures], language: Language
) -> Iterator[Point]:
    for point, side in zip(points, figures, strict=True):
        rate = side.tokens_per_second
        if rate is not None:
            told = f"{one.label}, {load_words(point.load, language)}: {language.significant(rate)}"
            yield Point(point.load.level, rate, told)


def _table(family: _Family, language: Language) -> Table:
    heads = ("load", "run", "speedup", "throughput", "plain_rate", "speculative_rate")
    rows = [_row(entry, point, language) for entry, points in family.each() for point in points]
    return Table([language.say(head) for head in heads], rows, frozenset({0, 1}))


def _row(entry: Entry, point: LoadPoint, language: Language) -> Sequence[str]:
    return (
        load_words(point.load, language),
        entry.label,
        language.interval(point.whole.speedup),
        language.interval(point.throughput),
        *(language.significant(figures.tokens_per_second) for _, figures in sides(point.whole)),
    )
