"""The figures that have no chart, all loads and both sides of every run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from gamaneh.bench.report.entries import Entry, load_words, sides
from gamaneh.bench.report.figure import Table, folded
from gamaneh.bench.report.language import Language
from gamaneh.bench.report.markup import Markup, tag
from gamaneh.bench.result import Distribution, Figures, Price

Show = Callable[[Figures, Language], str]


def _rank(spread: Distribution | None, rank: str, language: Language) -> str:
    return language.seconds(None if spread is None else getattr(spread, rank))


_COLUMNS: Mapping[str, Show] = {
    "tokens_per_second": lambda figures, language: language.significant(figures.tokens_per_second),
    "requests_per_second": lambda figures, language: language.significant(figures.requests_per_second),
    "decode_tokens_per_second": lambda figures, language: language.significant(figures.decode_tokens_per_second),
    "output_length": lambda figures, language: language.significant(
        None if figures.output_length is None else figures.output_length.mean
    ),
    "tokens_per_character": lambda figures, language: language.significant(figures.tokens_per_character),
    "utilisation": lambda figures, language: language.share(figures.utilisation),
    "goodput": lambda figures, language: language.share(None if figures.goodput is None else figures.goodput.share),
    "ttft_p95": lambda figures, language: _rank(figures.ttft, "p95", language),
    "tpot_p95": lambda figures, language: _rank(figures.tpot, "p95", language),
    "e2e_p95": lambda figures, language: _rank(figures.e2e, "p95", language),
    "e2e_p99": lambda figures, language: _rank(figures.e2e, "p99", language),
}
"""Column -> its value for one side."""


def all_figures(entries: Sequence[Entry], language: Language) -> Markup:
    """One table, folded away."""
    heads = ["load", "run", "side", *_COLUMNS]
    rows = [row for entry in entries for row in _rows(entry, language)]
    table = Table([language.say(head) for head in heads], rows, frozenset({0, 1, 2}))
    costs = [cost for entry in entries for cost in _costs(entry, language)]
    return tag("div", folded(language.say("all_figures"), table.html(), *costs), class_="card")


def _rows(entry: Entry, language: Language) -> Iterator[list[str]]:
    for point in entry.run.points:
        for side, figures in sides(point.whole):
            shown = (show(figures, language) for show in _COLUMNS.values())
            yield [load_words(point.load, language), entry.label, language.say(side), *shown]


def _costs(entry: Entry, language: Language) -> Iterator[Markup]:
    price = entry.run.price
    if price is None:
        return
    heads = [language.say("load"), language.say("run"), *(language.say(side) for side in ("plain", "speculative"))]
    rows = [
        [load_words(point.load, language), entry.label]
        + [language.significant(figures.cost_per_million) for _, figures in sides(point.whole)]
        for point in entry.run.points
    ]
    yield tag("h4", _price(price, language), dir="auto")
    yield Table(heads, rows, frozenset({0, 1})).html()


def _price(price: Price, language: Language) -> str:
    per_hour = language.significant(price.per_hour)
    return language.say("cost", currency=price.currency, per_hour=per_hour, date=language.digits(price.date))
