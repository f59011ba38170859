"""The file of a report: whole, in both languages, and closed to the outside. What it shows is test_report_browser's."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from string import Formatter
from typing import Any

import pytest
from report_runs import bare, run, sparse
from typer.testing import CliRunner

from gamaneh.bench.answer import CODES, CONDITIONS
from gamaneh.bench.report.render import DIRECTIONS, SCRIPTS, render, write_page
from gamaneh.bench.stats import FORMULAS
from gamaneh.cli.main import app
from gamaneh.errors import InvalidOption
from gamaneh.proposers.registry import REGISTRY

ASSETS = files("gamaneh.bench.report").joinpath("assets")
TEXTS: Mapping[str, Mapping[str, str]] = json.loads(ASSETS.joinpath("words.json").read_text(encoding="utf-8"))
WORDS: Mapping[str, Mapping[str, str]] = {**{name: recipe.titles for name, recipe in REGISTRY.items()}, **TEXTS}
VOID = {"meta"}


class Reader(HTMLParser):
    """Checks that elements are closed in order, and gathers elements, their texts and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[str] = []
        self.texts: dict[str, str] = {}
        self.attributes: list[tuple[str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.setdefault(self.open[-1], data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert not reader.open
    return reader


def embedded(page: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads(read(page).texts["script"])
    return report


def plain_data(value: object) -> Any:
    return json.loads(json.dumps(value))


@pytest.mark.parametrize("language", DIRECTIONS)
def test_the_page_holds_the_documents_of_its_runs_unchanged(language: str) -> None:
    runs = [run(), sparse(), bare()]
    assert embedded(render(runs, language))["runs"] == [plain_data(one.to_json()) for one in runs]


@pytest.mark.parametrize("language", DIRECTIONS)
def test_nothing_is_loaded(language: str) -> None:
    page = render([run()], language)
    reader = read(page)
    assert not {"link", "iframe", "img"} & set(reader.elements)
    assert not {"src", "href"} & {key for key, _ in reader.attributes}
    assert not re.search(r"url\(|@import|\bimport\b|fetch\(|https?://(?!www\.w3\.org/2000/svg)", page)
    assert not [key for key, _ in reader.attributes if key.startswith("on")]
    assert any(value and value.startswith("default-src 'none'") for _, value in reader.attributes)


def test_the_language_and_its_direction_are_declared() -> None:
    assert '<html lang="en" dir="ltr">' in render([run()], "en")
    assert '<html lang="fa" dir="rtl">' in render([run()], "fa")


@pytest.mark.parametrize("hostile", ["</script><script>alert(1)</script>", "<!--<script>", "$title", "\" onload='x'"])
def test_names_out_of_a_file_stay_text(hostile: str) -> None:
    page = render([run(hostile)], title=hostile)
    assert read(page).elements == read(render([run()])).elements
    report = embedded(page)
    assert (report["title"], report["runs"][0]["name"]) == (hostile, hostile)


def test_a_page_holds_the_words_of_its_language_alone() -> None:
    english, persian = (embedded(render([run()], language)) for language in ("en", "fa"))
    assert english["words"] == {key: texts["en"] for key, texts in WORDS.items()}
    assert persian["words"] == {key: texts["fa"] for key, texts in WORDS.items()}


def test_both_languages_have_all_words_with_the_same_places() -> None:
    for key, texts in WORDS.items():
        assert texts.keys() == DIRECTIONS.keys(), key
        assert all(texts.values()), key
        assert places(texts["en"]) == places(texts["fa"]), key


def places(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


def test_every_word_that_the_scripts_ask_for_is_there() -> None:
    script = "".join(ASSETS.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS)
    assert set(re.findall(r'say\("(\w+)"', script)) <= WORDS.keys()


def test_every_known_mistake_has_a_title_and_a_text_in_both_languages() -> None:
    assert {f"caution_{code}{end}" for code in CODES for end in ("", "_text")} <= WORDS.keys()


def test_every_formula_and_condition_has_a_name() -> None:
    assert {*FORMULAS, *CONDITIONS} <= WORDS.keys()


def test_every_formula_is_translated_as_it_is_now() -> None:
    translated = {
        key.removeprefix("formula_"): texts["en"] for key, texts in WORDS.items() if key.startswith("formula_")
    }
    assert translated == FORMULAS


def test_unknown_languages_are_refused() -> None:
    with pytest.raises(InvalidOption, match="language must be one of en, fa, got 'tlh'"):
        render([run()], "tlh")


def test_no_run_is_refused() -> None:
    with pytest.raises(InvalidOption, match="files must be at least one"):
        render([])


def test_a_page_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="--html must be a file that can be written"):
        write_page([run()], tmp_path / "missing" / "page.html")


def test_files_on_disk_become_a_page(tmp_path: Path) -> None:
    documents = [tmp_path / f"{number}.json" for number in range(2)]
    for number, file in enumerate(documents):
        file.write_text(json.dumps(run(f"run {number}").to_json()), encoding="utf-8")
    page = tmp_path / "page.html"
    result = CliRunner().invoke(app, ["report", *map(str, documents), "--html", str(page), "--title", "Both"])
    assert result.exit_code == 0 and "2 runs" in result.stdout
    assert page.read_text(encoding="utf-8") == render([run("run 0"), run("run 1")], title="Both")
