"""Lines over an axis, with bands where the values are not sure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gamaneh.bench.report.chart import NO_TITLE, TICKS, Frame, Series, drawing, marker, x_axis, y_axis
from gamaneh.bench.report.language import Language
from gamaneh.bench.report.markup import Markup, join, tag
from gamaneh.bench.report.scale import Axis

_HEIGHT = 270.0


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a line; `title` is None where no mark is wanted."""

    x: float
    y: float
    title: str | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """One series, its points from left to right."""

    series: Series
    points: Sequence[Point]


def line_chart(
    lines: Sequence[Line], x: Axis, y: Axis, language: Language, title: str, *, reference: float | None = None
) -> Markup:
    """All lines in one frame; `reference` is a value of y to compare with."""
    frame = Frame(_HEIGHT) if x.title else Frame(_HEIGHT - NO_TITLE, bottom=TICKS)
    parts = [x_axis(frame, x, language), y_axis(frame, y, language)]
    if reference is not None:
        left, right = frame.x_range
        at = y.place(reference, *frame.y_range)
        parts.append(tag("line", x1=left, x2=right, y1=at, y2=at, class_="reference"))
    parts += [_band(line, frame, x, y) for line in lines]
    parts += [_line(line, frame, x, y) for line in lines]
    return drawing(frame, title, *parts)


def _line(line: Line, frame: Frame, x: Axis, y: Axis) -> Markup:
    places = [_place(point.x, point.y, frame, x, y) for point in line.points]
    marks = [
        marker(line.series, *place, point.title)
        for place, point in zip(places, line.points, strict=True)
        if point.title is not None
    ]
    return join([tag("path", d=_path(places), class_=f"line {line.series.tone}"), *marks])


def _band(line: Line, frame: Frame, x: Axis, y: Axis) -> Markup:
    """Nothing where the points have no intervals; a single point gets a line."""
    known = [(point.x, point.low, point.high) for point in line.points]
    upper = [_place(at, high, frame, x, y) for at, _, high in known if high is not None]
    lower = [_place(at, low, frame, x, y) for at, low, _ in known if low is not None]
    if not upper or not lower:
        return Markup()
    if len(upper) == 1:
        return tag("path", d=_path([lower[0], upper[0]]), class_=f"interval {line.series.tone}")
    return tag("path", d=f"{_path([*upper, *reversed(lower)])}Z", class_=f"band {line.series.tone}")


def _place(across: float, up: float, frame: Frame, x: Axis, y: Axis) -> tuple[float, float]:
    return x.place(across, *frame.x_range), y.place(up, *frame.y_range)


def _path(places: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
