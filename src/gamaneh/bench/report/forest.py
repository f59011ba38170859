"""Ratios with their intervals, one row per group: which are surely above 1?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gamaneh.bench.report.chart import WIDTH, Frame, Series, drawing, label, marker, x_axis
from gamaneh.bench.report.language import Language
from gamaneh.bench.report.markup import Markup, join, tag
from gamaneh.bench.report.scale import Axis, ratio_axis
from gamaneh.bench.statistics import Interval

_NAMES, _VALUES = 104.0, 54.0
_MARK_HEIGHT, _ROW_GAP = 17.0, 11.0
_LONGEST_NAME = 15


@dataclass(frozen=True, slots=True)
class Mark:
    """One ratio of one series."""

    series: Series
    ratio: Interval


@dataclass(frozen=True, slots=True)
class Row:
    """One group with the ratios of all series that have it."""

    name: str
    marks: Sequence[Mark]

    @property
    def height(self) -> float:
        return len(self.marks) * _MARK_HEIGHT + _ROW_GAP


def forest_chart(rows: Sequence[Row], language: Language, title: str) -> Markup:
    """Names at the side where lines begin, values at the other, equality as a strong line."""
    frame = _frame(rows, language)
    values = [value for row in rows for mark in row.marks for value in (mark.ratio.low, mark.ratio.high)]
    axis = ratio_axis(values, language.tick_times, language.say("speedup"))
    parts = [x_axis(frame, axis, language), _reference(frame, axis)]
    top = frame.top
    for row in rows:
        parts.append(_row(row, top, frame, axis, language))
        top += row.height
    return drawing(frame, title, *parts)


def _frame(rows: Sequence[Row], language: Language) -> Frame:
    left, right = (_VALUES, _NAMES) if language.rtl else (_NAMES, _VALUES)
    height = sum(row.height for row in rows)
    return Frame(height=height + 56.0, left=left, right=right, top=8.0, bottom=48.0)


def _reference(frame: Frame, axis: Axis) -> Markup:
    x, (bottom, top) = axis.place(1.0, *frame.x_range), frame.y_range
    return tag("line", x1=x, x2=x, y1=bottom, y2=top, class_="reference")


def _row(row: Row, top: float, frame: Frame, axis: Axis, language: Language) -> Markup:
    middle = top + (row.height - _ROW_GAP) / 2 + 7
    outside, side = (WIDTH - 4, "end") if language.rtl else (4, "start")
    parts = [label(_shortened(row.name), outside, middle, language, anchor=side, class_="name")]
    for number, mark in enumerate(row.marks):
        parts.append(_mark(row.name, mark, top + (number + 0.5) * _MARK_HEIGHT + 3, frame, axis, language))
    return join(parts)


def _mark(name: str, mark: Mark, y: float, frame: Frame, axis: Axis, language: Language) -> Markup:
    value, low, high = (axis.place(at, *frame.x_range) for at in (mark.ratio.value, mark.ratio.low, mark.ratio.high))
    outside, side = (4, "start") if language.rtl else (WIDTH - 4, "end")
    told = f"{mark.series.label} · {name}: {language.interval(mark.ratio)}"
    return join(
        [
            tag("line", x1=low, x2=high, y1=y, y2=y, class_=f"interval {mark.series.tone}"),
            marker(mark.series, value, y, told),
            label(language.times(mark.ratio.value), outside, y + 4, language, anchor=side, class_="value"),
        ]
    )


def _shortened(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
