"""Runs as one page of HTML: the documents as JSON, and the scripts of `assets` that draw them in the browser."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import gamaneh
from gamaneh.bench.result import Run
from gamaneh.errors import InvalidOption

DIRECTIONS = {"en": "ltr", "fa": "rtl"}
"""Language -> the direction of its writing."""

SCRIPTS = ("text.js", "charts.js", "report.js")
"""In this order they are one module."""

_ASSETS = files("gamaneh.bench.report").joinpath("assets")


def render(runs: Sequence[Run], language: str = "en", title: str | None = None) -> str:
    """Return the page that shows these runs. It loads nothing from elsewhere.

    Args:
        language: `en` or `fa`.
        title: stands at the top; None for that of the language.

    Raises:
        InvalidOption: there is no run, or no such language.
    """
    if not runs:
        raise InvalidOption("files", "must be at least one", 0)
    check_language(language)
    words = _words()
    title = title or words["title"][language]
    report = {
        "title": title,
        "version": gamaneh.__version__,
        "words": {key: texts[language] for key, texts in words.items()},
        "recorded": {key: texts["en"] for key, texts in words.items() if language != "en" and _recorded(key)},
        "runs": [run.to_json() for run in runs],
    }
    return Template(_asset("report.html")).substitute(
        language=language,
        direction=DIRECTIONS[language],
        title=escape(title),
        style=_asset("style.css"),
        no_script=escape(words["no_script"][language]),
        report=_embedded(report),
        script="\n".join(map(_asset, SCRIPTS)),
    )


def write_page(runs: Sequence[Run], path: Path, language: str = "en", title: str | None = None) -> None:
    """Render into a file.

    Raises:
        InvalidOption: there is no run, no such language, or the file cannot be written.
    """
    page = render(runs, language, title)
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InvalidOption("--html", f"must be a file that can be written ({error.strerror})", str(path)) from error


def check_language(language: str) -> None:
    """
    Raises:
        InvalidOption: there are no words for it.
    """
    if language not in DIRECTIONS:
        raise InvalidOption("language", f"must be one of {', '.join(DIRECTIONS)}", language)


def _words() -> Mapping[str, Mapping[str, str]]:
    """Key -> its text by language."""
    from gamaneh.proposers.registry import known_recipes  # imports the models, slowly

    words: Mapping[str, Mapping[str, str]] = json.loads(_asset("words.json"))
    names = {recipe.name: {language: recipe.title(language) for language in DIRECTIONS} for recipe in known_recipes()}
    return {**names, **words}


def _recorded(key: str) -> bool:
    """Whether runs hold this text in English, so that the page tells it anew in its own language."""
    return key.startswith(("caution_", "formula_", "failed_times"))


def _embedded(value: Any) -> str:
    """JSON that cannot end the element that it stands in."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")


def _asset(name: str) -> str:
    return _ASSETS.joinpath(name).read_text(encoding="utf-8").rstrip()
