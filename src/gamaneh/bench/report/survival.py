"""How far drafts survive: by run, or by category where there is a single run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gamaneh.bench.report.chart import Series, series
from gamaneh.bench.report.entries import Entry
from gamaneh.bench.report.figure import Figure, Table
from gamaneh.bench.report.language import Language
from gamaneh.bench.report.lines import Line, Point, line_chart
from gamaneh.bench.report.scale import place_axis, share_axis
from gamaneh.bench.result import Group, Speculation

LEAST_DRAFTS = 5
"""Positions that fewer drafts reached say too little to be drawn; the table has them."""


def survival_figures(entries: Sequence[Entry], language: Language) -> Iterator[Figure]:
    """One figure, where anything was drafted and it is known by position."""
    curves = _by_category(entries[0], language) if len(entries) == 1 else _by_run(entries)
    if any(curve.drawn for curve in curves):
        yield _figure(curves, language)


@dataclass(frozen=True, slots=True)
class _Curve:
    series: Series
    drafts: Speculation

    @property
    def drawn(self) -> list[tuple[int, float, int]]:
        """Position from 1, survival, and the number of drafts that reached it."""
        pairs = zip(self.drafts.survival, self.drafts.offered, strict=True)
        return [(at, share, offered) for at, (share, offered) in enumerate(pairs, start=1) if offered >= LEAST_DRAFTS]


def _by_run(entries: Sequence[Entry]) -> list[_Curve]:
    return list(_known((entry.series, entry.whole) for entry in entries))


def _by_category(entry: Entry, language: Language) -> list[_Curve]:
    groups = entry.point.by("category") or (entry.whole,)
    return list(_known((series(language.name(group.name), at), group) for at, group in enumerate(groups)))


def _known(groups: Iterator[tuple[Series, Group]]) -> Iterator[_Curve]:
    for one, group in groups:
        if group.speculative.speculation is not None:
            yield _Curve(one, group.speculative.speculation)


def _figure(curves: Sequence[_Curve], language: Language) -> Figure:
    longest = max(at for curve in curves for at, _, _ in curve.drawn)
    x = place_axis(longest, language.significant, language.say("position"))
    title = language.say("survival_title")
    lines = [Line(curve.series, [_point(curve, *values, language) for values in curve.drawn]) for curve in curves]
    chart = line_chart(lines, x, share_axis(language.share), language, title)
    legend = [curve.series for curve in curves if curve.drawn]
    text, note = language.say("survival_text"), language.say("survival_note")
    return Figure(title, text, chart, legend, _table(curves, language), note)


def _point(curve: _Curve, at: int, share: float, offered: int, language: Language) -> Point:
    told = f"{curve.series.label}, {language.digits(str(at))}: {language.share(share)} / {language.number(offered, 0)}"
    return Point(at, share, told)


def _table(curves: Sequence[_Curve], language: Language) -> Table:
    longest = max(len(curve.drafts.survival) for curve in curves)
    heads = [language.say("run"), *(language.digits(str(at)) for at in range(1, longest + 1))]
    rows = [
        [curve.series.label, *(language.share(share) for share in curve.drafts.survival)]
        + ["" for _ in range(longest - len(curve.drafts.survival))]
        for curve in curves
    ]
    return Table(heads, rows)
