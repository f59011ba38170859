"""A chart with its title, its words, its legend and, folded away, its figures as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gamaneh.bench.report.chart import Series, legend
from gamaneh.bench.report.language import Language
from gamaneh.bench.report.markup import Markup, join, tag


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text.

    Args:
        heads: one per column.
        words: columns that hold words, and not figures; the first always does.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: frozenset[int] = frozenset({0})

    def html(self) -> Markup:
        """The table in a box that scrolls sideways where it is too wide."""
        heads = tag("tr", *(tag("th", head, scope="col", class_=self._kind(at)) for at, head in enumerate(self.heads)))
        body = join(tag("tr", *(self._cell(at, cell) for at, cell in enumerate(row))) for row in self.rows)
        table = tag("table", tag("thead", heads), tag("tbody", body))
        return tag("div", table, class_="scroll", tabindex=0)

    def _cell(self, at: int, text: str) -> Markup:
        return tag("td", text, class_=self._kind(at), dir="auto" if at in self.words else None)

    def _kind(self, at: int) -> str | None:
        return None if at in self.words else "figure"


@dataclass(frozen=True, slots=True)
class Figure:
    """Everything about one chart.

    Args:
        title: what it shows.
        text: how to read it.
        chart: the drawing.
        legend: the series in it.
        table: the figures that were drawn.
        note: what must be known to read it right; stands below the drawing.
    """

    title: str
    text: str
    chart: Markup
    legend: Sequence[Series]
    table: Table
    note: str | None = None

    def html(self, language: Language) -> Markup:
        """The figure as an element."""
        return tag(
            "figure",
            tag("figcaption", tag("h3", self.title), tag("p", self.text)),
            legend(self.legend),
            self.chart,
            tag("p", self.note, class_="soft") if self.note else None,
            folded(language.say("table"), self.table.html()),
            class_="card",
        )


def folded(title: str, *content: Markup) -> Markup:
    """Content that is shown when one asks for it."""
    return tag("details", tag("summary", title), *content)
