"""The page of a report: whole, in both languages, and closed to the outside."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from string import Formatter

import pytest
from report_runs import bare, run, sparse
from typer.testing import CliRunner

from gamaneh.bench.report.language import Language
from gamaneh.bench.report.markup import VOID, tag
from gamaneh.bench.report.page import render, write_page
from gamaneh.bench.report.words import ENGLISH, PERSIAN
from gamaneh.bench.result import Run
from gamaneh.bench.run.cautions import _LOOKS
from gamaneh.bench.run.fairness import CONDITIONS
from gamaneh.bench.run.formulas import FORMULAS
from gamaneh.bench.statistics import Interval
from gamaneh.cli.main import app
from gamaneh.errors import InvalidOption

LANGUAGES = [Language("en"), Language("fa")]
SETS: dict[str, Sequence[Run]] = {
    "one": [run()],
    "three": [run(), run("lookup", gain=1.2, seed=3, proposer="lookup"), run("eagle", gain=2.1, seed=5)],
    "same names": [run(), run(gain=0.8)],
    "bare": [bare()],
    "bare and whole": [bare(), run()],
    "sparse": [sparse()],
}


class Reader(HTMLParser):
    """Checks that elements are closed in order, and gathers texts and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []

    def handle_starttag(self, name, attributes):
        self.attributes += [(name, key, value) for key, value in attributes]
        if name not in VOID:
            self.open.append(name)

    def handle_endtag(self, name):
        assert self.open.pop() == name

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.texts.append(data)


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert not reader.open
    return reader


@pytest.fixture(params=LANGUAGES, ids=lambda language: language.code)
def language(request: pytest.FixtureRequest) -> Language:
    value: Language = request.param
    return value


@pytest.mark.parametrize("name", SETS)
def test_every_element_is_closed_and_every_figure_is_a_number(name: str, language: Language) -> None:
    reader = read(render(SETS[name], language))
    assert not [text for text in reader.texts if re.search(r"\b(nan|inf|None)\b(?! of)", text)]
    assert not [value for _, _, value in reader.attributes if value and re.search(r"\b(nan|inf)\b", value)]


@pytest.mark.parametrize("name", SETS)
def test_nothing_is_loaded_and_nothing_runs(name: str, language: Language) -> None:
    page = render(SETS[name], language)
    reader = read(page)
    assert not {"script", "link", "iframe", "img"} & {element for element, _, _ in reader.attributes}
    assert not {"src", "href"} & {key for _, key, _ in reader.attributes}
    assert not re.search(r"url\(|@import|https?://", page)
    assert not [key for _, key, _ in reader.attributes if key.startswith("on")]


def test_the_language_and_its_direction_are_declared() -> None:
    assert '<html lang="en" dir="ltr">' in render(SETS["one"], Language("en"))
    assert '<html lang="fa" dir="rtl">' in render(SETS["one"], Language("fa"))


def test_names_out_of_a_file_stay_text(language: Language) -> None:
    hostile = "<script>alert(1)</script>"
    reader = read(render([run(hostile), run("\" onload='x'")], language, title=hostile))
    assert "script" not in {element for element, _, _ in reader.attributes}
    assert any(hostile in text for text in reader.texts)


def test_runs_of_the_same_name_are_told_apart() -> None:
    texts = read(render(SETS["same names"], Language("en"))).texts
    assert {"draft model (1)", "draft model (2)"} <= set(texts)


def test_each_run_has_its_headline(language: Language) -> None:
    texts = read(render(SETS["three"], language)).texts
    for gain in (1.62, 1.2, 2.1):
        assert language.times(gain) in texts


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (Interval(1.5, 1.2, 1.8), "faster"),
        (Interval(0.8, 0.7, 0.9), "slower"),
        (Interval(1.02, 0.97, 1.06), "no_difference"),
    ],
)
def test_the_badge_says_what_the_interval_allows(ratio: Interval, words: str) -> None:
    first = run().points[0]
    shown = replace(run(), points=(replace(first, groups=(replace(first.whole, speedup=ratio), *first.groups[1:])),))
    assert ENGLISH[words] in read(render([shown], Language("en"))).texts


def titles(page: str) -> list[str]:
    return re.findall(r"<figcaption><h3>(.*?)</h3>", page)


def test_a_full_run_has_every_chart(language: Language) -> None:
    keys = ["speed_title", "speed_language", "speed_length", "load_title", "throughput_title"]
    keys += ["tpot", "ttft", "itl", "e2e", "survival_title", "split_title", "memory_title"]
    assert titles(render(SETS["one"], language)) == [language.say(key) for key in keys]


def test_what_was_not_measured_has_no_chart() -> None:
    language = Language("en")
    assert titles(render([sparse()], language)) == [language.say(key) for key in ("tpot", "e2e", "split_title")]
    assert titles(render([bare()], language)) == []


def test_one_load_makes_no_chart_against_load() -> None:
    assert ENGLISH["load_title"] not in titles(render([run(points=1)], Language("en")))


def test_loads_of_two_runs_make_one() -> None:
    second = run("two at once")
    second = replace(second, points=second.points[1:2])
    assert ENGLISH["load_title"] in titles(render([run(points=1), second], Language("en")))


def test_survival_is_by_category_for_one_run_and_by_run_for_several() -> None:
    language = Language("en")
    alone, joined = (render(SETS[name], language).split(ENGLISH["survival_title"])[1] for name in ("one", "three"))
    assert "creative</span>" in alone.split("</ul>")[0]
    assert "lookup</span>" in joined.split("</ul>")[0]


def test_a_chart_of_survival_says_below_it_why_it_may_rise(language: Language) -> None:
    figure = render(SETS["one"], language).split(language.say("survival_title"), 1)[1].split("</figure>")[0]
    assert "</svg>" in figure.split(language.say("survival_note"))[0]
    assert language.say("survival_note") in figure.split("</svg>")[-1]


def test_an_incomplete_run_says_so(language: Language) -> None:
    texts = read(render([bare()], language)).texts
    assert language.say("incomplete") in texts
    assert any("the server went away" in text for text in texts)


def test_warnings_and_differences_are_shown(language: Language) -> None:
    texts = read(render(SETS["one"], language)).texts
    assert run().cautions[0].text in texts
    assert {"chat-03", "the quick", "a quick"} <= set(texts)


def test_runs_of_different_machines_are_marked() -> None:
    other = replace(run(), plain=replace(run().plain, hardware="another"))
    assert ENGLISH["machines_differ"] in render([run(), other], Language("en"))
    assert ENGLISH["machines_differ"] not in render([run(), run()], Language("en"))


def test_provenance_names_models_prompts_and_commit() -> None:
    texts = " ".join(read(render(SETS["one"], Language("en"))).texts)
    for part in ("qwen2.5-coder-0.5b-instruct", "cccccccccccc", "core.jsonl (96)", "0123abc", "2026-11-29"):
        assert part in texts


@pytest.mark.parametrize(
    ("code", "shown"),
    [("en", "2026-11-29, 08:05 UTC"), ("fa", "\u2066۲۰۲۶-۱۱-۲۹\u2069 ساعتِ \u2066۰۸:۰۵ UTC\u2069")],
)
def test_a_moment_is_a_date_and_a_time_each_kept_from_left_to_right(code: str, shown: str) -> None:
    language = Language(code)
    assert [language.moment(f"2026-11-29T08:05{rest}") for rest in ("Z", ":09.25+00:00")] == [shown, shown]
    texts = read(render(SETS["one"], language)).texts
    assert shown in texts and any(shown in text for text in texts if text != shown)
    assert not [text for text in texts if re.search(r"[0-9۰-۹]T[0-9۰-۹]", text)]


@pytest.mark.parametrize("text", ["2026-11-29", "2026-11-29T08:05:09+03:30", "last week"])
def test_a_date_that_is_no_moment_of_utc_loses_nothing(text: str) -> None:
    assert Language("en").moment(text) == text


def test_persian_figures_have_persian_digits() -> None:
    tables = re.findall(r'class="figure">(.*?)<', render(SETS["one"], Language("fa")))
    assert not [cell for cell in tables if re.search(r"(?<!P)[0-9]", cell) and not re.match(r"P\d\d", cell)]


def test_both_languages_have_the_same_words_and_places() -> None:
    assert ENGLISH.keys() == PERSIAN.keys()
    for key, text in ENGLISH.items():
        assert places(text) == places(PERSIAN[key]), key


def places(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


@pytest.mark.parametrize(
    ("value", "seconds"), [(0.0, "0"), (0.00123, "1.23 ms"), (0.25, "250 ms"), (1.0, "1 s"), (72.46, "72.5 s")]
)
def test_seconds_have_the_unit_that_suits(value: float, seconds: str) -> None:
    assert Language("en").seconds(value) == seconds


@pytest.mark.parametrize(("value", "size"), [(0, "0"), (999, "999 B"), (1000, "1 kB"), (1_090_000_000, "1.09 GB")])
def test_sizes_have_the_unit_that_suits(value: int, size: str) -> None:
    assert Language("en").bytes(value) == size


def test_unknown_languages_are_refused() -> None:
    with pytest.raises(InvalidOption, match="language must be one of en, fa"):
        Language("tlh")


def test_no_run_is_refused() -> None:
    with pytest.raises(InvalidOption, match="files must be at least one"):
        render([], Language())


def test_a_page_that_cannot_be_written_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="--html must be a file that can be written"):
        write_page([run()], tmp_path / "missing" / "page.html", Language())


def test_elements_escape_text_and_attributes() -> None:
    made = tag("p", "a < b & c", tag("b", "bold"), None, title='"quoted" <', hidden=True, lang=None, x_y=1.5)
    assert made == '<p title="&quot;quoted&quot; &lt;" hidden x-y="1.5">a &lt; b &amp; c<b>bold</b></p>'


def test_files_on_disk_become_a_page(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.json" for number in range(2)]
    for number, file in enumerate(files):
        file.write_text(json.dumps(run(f"run {number}").to_json()), encoding="utf-8")
    page = tmp_path / "page.html"
    result = CliRunner().invoke(app, ["report", *map(str, files), "--html", str(page), "--title", "Both"])
    assert result.exit_code == 0 and "2 runs" in result.stdout
    assert page.read_text(encoding="utf-8") == render([run("run 0"), run("run 1")], Language(), "Both")


def test_every_known_mistake_has_a_title_in_both_languages() -> None:
    assert {f"caution_{code}" for code in _LOOKS} <= ENGLISH.keys()


def test_every_formula_and_condition_has_a_name() -> None:
    assert {*FORMULAS, *CONDITIONS} <= ENGLISH.keys()
