"""The whole page: one text of HTML with its style, its drawings and nothing to load from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from pathlib import Path

import gamaneh
from gamaneh.bench.report.checks import checks
from gamaneh.bench.report.entries import Entry, entries_of, measured
from gamaneh.bench.report.figure import Figure
from gamaneh.bench.report.figures import all_figures
from gamaneh.bench.report.groups import group_figures
from gamaneh.bench.report.language import Language
from gamaneh.bench.report.latency import latency_figures
from gamaneh.bench.report.load import load_figures
from gamaneh.bench.report.markup import Markup, join, tag
from gamaneh.bench.report.overview import overview
from gamaneh.bench.report.provenance import machine_words, provenance
from gamaneh.bench.report.resources import resource_figures
from gamaneh.bench.report.survival import survival_figures
from gamaneh.bench.result import Run
from gamaneh.errors import InvalidOption

_CHARTS: Sequence[Callable[[Sequence[Entry], Language], Iterator[Figure]]] = (
    group_figures,
    load_figures,
    latency_figures,
    survival_figures,
    resource_figures,
)


def render(runs: Sequence[Run], language: Language, title: str | None = None) -> str:
    """The page that shows these runs.

    Args:
        title: stands at the top; None for that of the language.

    Raises:
        InvalidOption: there is no run.
    """
    if not runs:
        raise InvalidOption("files", "must be at least one", 0)
    entries = entries_of(runs)
    title = title or language.say("title")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        tag("style", Markup(_style())),
    )
    body = tag("body", _header(entries, language, title), _main(entries, language), _footer(language))
    return "<!doctype html>\n" + tag("html", head, body, lang=language.code, dir=language.direction)


def write_page(runs: Sequence[Run], path: Path, language: Language, title: str | None = None) -> None:
    """Render into a file.

    Raises:
        InvalidOption: there is no run, or the file cannot be written.
    """
    page = render(runs, language, title)
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InvalidOption("--html", f"must be a file that can be written ({error.strerror})", str(path)) from error


def _style() -> str:
    return files("gamaneh.bench.report").joinpath("style.css").read_text(encoding="utf-8")


def _header(entries: Sequence[Entry], language: Language, title: str) -> Markup:
    first = entries[0].run.provenance
    made = language.say("made", date=language.moment(first.date), machine=machine_words(first.machine, language))
    return tag(
        "header",
        tag("h1", title, dir="auto"),
        tag("p", language.say("subtitle")),
        tag("p", made, class_="soft"),
    )


def _main(entries: Sequence[Entry], language: Language) -> Markup:
    shown = measured(entries)
    charts = [figure.html(language) for draw in _CHARTS for figure in draw(shown, language)] if shown else []
    return tag(
        "main",
        _section(language.say("runs"), overview(entries, language)),
        tag("div", *charts, class_="charts"),
        all_figures(shown, language) if shown else None,
        _section(language.say("checks"), checks(entries, language)),
        _section(language.say("provenance"), provenance(entries, language)),
    )


def _section(title: str, *content: Markup) -> Markup:
    return tag("section", tag("h2", title), join(content))


def _footer(language: Language) -> Markup:
    return tag("footer", tag("p", language.say("footer", version=gamaneh.__version__)))
