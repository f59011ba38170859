"""Elements of HTML and SVG. Text is escaped unless it is markup already."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

VOID = frozenset({"meta", "br", "hr"})
"""Elements without an end tag."""


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Child = str | None
Attribute = str | float | bool | None


def tag(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """One element.

    Args:
        children: markup, text, or None for nothing.
        attributes: `class_` stands for `class`, `stroke_width` for `stroke-width`; None and False leave the
            attribute out, True gives it no value.
    """
    opened = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in VOID:
        return Markup(f"<{name}{opened}>")
    return Markup(f"<{name}{opened}>{join(children)}</{name}>")


def pair(name: str, value: str, *, foreign: bool = False) -> Markup:
    """A name and what is known of it, for a `dl`; foreign values may run the other way than the page."""
    return tag("div", tag("dt", name), tag("dd", tag("bdi", value) if foreign else value))


def join(children: Iterable[Child]) -> Markup:
    """Children one after the other."""
    return Markup("".join(_child(child) for child in children))


def _child(child: Child) -> str:
    if child is None:
        return ""
    return child if isinstance(child, Markup) else escape(child, quote=False)


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(_text(value))}"'


def _text(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
