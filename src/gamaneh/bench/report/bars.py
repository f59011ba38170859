"""Stacked bars: what a whole is made of, row by row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gamaneh.bench.report.chart import TICKS, Frame, Series, drawing, label, x_axis
from gamaneh.bench.report.language import Language
from gamaneh.bench.report.markup import Markup, join, tag
from gamaneh.bench.report.scale import Axis, amount_axis

_BAR, _NAME, _GAP = 17.0, 17.0, 9.0
_ROW = _BAR + _NAME + _GAP

LONGEST_NAME = 40
"""Letters."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One whole with its parts, which are drawn one after the other."""

    name: str
    parts: Sequence[tuple[Series, float]]

    @property
    def whole(self) -> float:
        return sum(value for _, value in self.parts)


def bar_chart(bars: Sequence[Bar], language: Language, title: str, show: Callable[[float], str]) -> Markup:
    """Bars begin at the side where lines of text begin; each has its name above it."""
    near, far = 12.0, 30.0
    margins = {"left": far, "right": near} if language.rtl else {"left": near, "right": far}
    frame = Frame(_ROW * len(bars) + TICKS + 4.0, **margins, top=4.0, bottom=TICKS)
    left, right = frame.x_range
    axis = amount_axis((bar.whole for bar in bars), show)
    sides = (right, left) if language.rtl else (left, right)
    parts = [x_axis(frame, axis, language, mirrored=language.rtl)]
    parts += [_bar(bar, frame.top + _ROW * row, axis, sides, language) for row, bar in enumerate(bars)]
    return drawing(frame, title, *parts)


def _bar(bar: Bar, top: float, axis: Axis, sides: tuple[float, float], language: Language) -> Markup:
    text = f"{_cut(bar.name)} · {axis.show(bar.whole)}"
    name = label(text, sides[0], top + 13, language, anchor=_start(language))
    drawn, so_far = [tag("g", tag("title", bar.name), name)], 0.0
    for one, value in bar.parts:
        start, end = (axis.place(at, *sides) for at in (so_far, so_far + value))
        told = tag("title", f"{one.label}: {axis.show(value)}")
        shape = tag("rect", told, x=min(start, end), width=abs(end - start), y=top + _NAME, height=_BAR)
        drawn.append(tag("g", shape, class_=f"part {one.tone}"))
        so_far += value
    return join(drawn)


def _cut(name: str) -> str:
    """As much of a name as fits above its bar on a phone; the tooltip and the table below have all of it."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1].rstrip()}…"


def _start(language: Language) -> str:
    """The side of the drawing where lines begin, as seen from left to right."""
    return "end" if language.rtl else "start"
