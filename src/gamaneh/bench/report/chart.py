"""What all charts are made of: a frame, axes, labels, markers, a legend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gamaneh.bench.report.language import Language
from gamaneh.bench.report.markup import Markup, join, tag
from gamaneh.bench.report.scale import Axis

WIDTH = 460.0
TICKS, NO_TITLE = 24.0, 16.0
"""Room below an axis for the values of its ticks, and what is saved where it has no title."""

PLAIN = "plain"
NUM_TONES = 8
_MARK = 4.5
_ANCHORS = {"start": "end", "end": "start", "middle": "middle"}


@dataclass(frozen=True, slots=True)
class Series:
    """What a line or a mark stands for.

    Args:
        label: in words.
        tone: class of the stylesheet that gives the colour.
        shape: number of the marker's shape, so that colours are not needed to tell them apart.
    """

    label: str
    tone: str
    shape: int = 0


def series(label: str, number: int) -> Series:
    """Number `number` of several."""
    return Series(label, f"tone-{number % NUM_TONES}", number)


@dataclass(frozen=True, slots=True)
class Frame:
    """The rectangle between the axes, inside a drawing of the usual width."""

    height: float
    left: float = 52.0
    right: float = 29.0
    top: float = 15.0
    bottom: float = 40.0

    @property
    def x_range(self) -> tuple[float, float]:
        return self.left, WIDTH - self.right

    @property
    def y_range(self) -> tuple[float, float]:
        """Bottom and top."""
        return self.height - self.bottom, self.top


def drawing(frame: Frame, description: str, *parts: Markup) -> Markup:
    """The whole chart as one image with a name."""
    view = f"0 0 {WIDTH:g} {frame.height:g}"
    return tag("svg", *parts, class_="chart", role="img", aria_label=description, viewBox=view)


def label(
    text: str, x: float, y: float, language: Language, *, anchor: str = "middle", class_: str | None = None
) -> Markup:
    """Text at a place; `anchor` is the side of the text, left to right, that stands there."""
    if not language.rtl:
        return tag("text", text, x=x, y=y, text_anchor=anchor, class_=class_)
    # For right-to-left text the start is on the right.
    return tag("text", text, x=x, y=y, text_anchor=_ANCHORS[anchor], direction="rtl", class_=class_)


def x_axis(frame: Frame, axis: Axis, language: Language, *, mirrored: bool = False) -> Markup:
    """Vertical lines at the ticks, their values and the title below; low values are on the right if mirrored."""
    bottom, top = frame.y_range
    low, high = reversed(frame.x_range) if mirrored else frame.x_range
    parts = []
    for tick in axis.ticks:
        x = axis.place(tick, low, high)
        parts.append(tag("line", x1=x, x2=x, y1=bottom, y2=top, class_="grid"))
        parts.append(label(axis.show(tick), x, bottom + 16, language))
    middle = sum(frame.x_range) / 2
    parts.append(label(axis.title, middle, bottom + 34, language, class_="axis-title") if axis.title else Markup())
    return join(parts)


def y_axis(frame: Frame, axis: Axis, language: Language) -> Markup:
    """Horizontal lines at the ticks and their values on the left."""
    left, right = frame.x_range
    parts = []
    for tick in axis.ticks:
        y = axis.place(tick, *frame.y_range)
        parts.append(tag("line", x1=left, x2=right, y1=y, y2=y, class_="grid"))
        parts.append(label(axis.show(tick), left - 7, y + 4, language, anchor="end"))
    return join(parts)


def marker(one: Series, x: float, y: float, title: str) -> Markup:
    """A mark that shows `title` when one points at it."""
    draw = _SHAPES[one.shape % len(_SHAPES)]
    return tag("g", tag("title", title), draw(x, y), class_=f"mark {one.tone}")


def legend(entries: Sequence[Series]) -> Markup | None:
    """The series by their marks; none where there is only one."""
    if len(entries) < 2:
        return None
    return tag("ul", *(tag("li", _swatch(one), tag("span", one.label, dir="auto")) for one in entries), class_="legend")


def _swatch(one: Series) -> Markup:
    line = tag("line", x1=0, x2=22, y1=7, y2=7, class_=f"line {one.tone}")
    return tag("svg", line, marker(one, 11, 7, one.label), viewBox="0 0 22 14", aria_hidden="true")


def _circle(x: float, y: float) -> Markup:
    return tag("circle", cx=x, cy=y, r=_MARK)


def _square(x: float, y: float) -> Markup:
    return tag("rect", x=x - _MARK + 0.5, y=y - _MARK + 0.5, width=2 * _MARK - 1, height=2 * _MARK - 1)


def _diamond(x: float, y: float) -> Markup:
    reach = _MARK + 1
    return tag("path", d=f"M{x:.1f} {y - reach:.1f}l{reach} {reach}l-{reach} {reach}l-{reach} -{reach}z")


def _triangle(x: float, y: float) -> Markup:
    reach = _MARK + 0.5
    return tag("path", d=f"M{x:.1f} {y - reach:.1f}l{reach} {2 * reach}h-{2 * reach}z")


_SHAPES = (_circle, _square, _diamond, _triangle)
