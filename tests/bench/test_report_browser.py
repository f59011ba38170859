"""The page of a report in a real browser: what it shows, that it fits and reads, in both languages."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from chromium import needs_chromium, open_chromium
from report_runs import CATEGORIES, bare, run, sparse
from selenium import webdriver
from test_report_page import WORDS

from gamaneh.bench.answer import find_cautions
from gamaneh.bench.report.render import write_page
from gamaneh.bench.result import Check, Distribution, FailedRequest, Interval, Memory, PromptMark, Run, Saturation

pytestmark = needs_chromium

PHONE, DESK = 320, 1280
PROPOSERS = ("draft_model", "lookup", "eagle", "medusa", "suffix", "mtp", "auto", "portfolio")
LOOKUP = "prompt lookup with a name that is rather long"

SETS: Mapping[str, Sequence[Run]] = {
    "one": [run()],
    "three": [run(), run("lookup", gain=1.2, seed=3, proposer="lookup"), run("eagle", gain=2.1, seed=5)],
    "eight": [run(name, gain=0.8 + at / 4, seed=at, proposer=name) for at, name in enumerate(PROPOSERS)],
    "mixed": [run(), run(LOOKUP, gain=0.82, seed=3, proposer="lookup"), sparse(), bare("ended early")],
    "same names": [run(), run(gain=0.8)],
    "bare": [bare()],
    "sparse": [sparse()],
    "one load": [run(points=1)],
}


class Page:
    """Reports, opened at a width and in a colour scheme."""

    def __init__(self, driver: webdriver.Chrome, folder: Path) -> None:
        self.driver, self.folder = driver, folder

    def open(
        self, runs: str | Sequence[Run], language: str = "en", width: int = DESK, scheme: str = "light", **more: str
    ) -> None:
        shown = SETS[runs] if isinstance(runs, str) else runs
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        preferred = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", preferred)
        file = self.folder / "report.html"
        write_page(shown, file, language, **more)
        self.driver.get(file.as_uri())

    def script(self, code: str) -> Any:
        return self.driver.execute_script(f"return {code}")

    def texts(self, selector: str) -> list[str]:
        texts: list[str] = self.script(f"[...document.querySelectorAll({selector!r})].map((e) => e.textContent)")
        return texts

    def rows(self, title: str) -> list[list[str]]:
        """The cells below the heads of the table under the chart of this title."""
        rows: list[list[str]] = self.script(
            f"""[...[...document.querySelectorAll('figure')].find((e) => e.querySelector('h3').textContent === {title!r}
            ).querySelectorAll('tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))"""
        )
        return rows


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    driver = open_chromium(browser="ALL")
    try:
        yield Page(driver, tmp_path_factory.mktemp("report"))
    finally:
        driver.quit()


def english(*keys: str) -> list[str]:
    return [WORDS[key]["en"] for key in keys]


CHARTS = (
    *("speed_title", "speed_language", "speed_length", "load_title", "throughput_title", "tpot", "ttft", "itl", "e2e"),
    *("survival_title", "split_title", "memory_title"),
)


@pytest.mark.parametrize("language", ["en", "fa"])
@pytest.mark.parametrize("name", SETS)
def test_every_figure_is_a_number_and_the_browser_finds_nothing_to_complain_about(
    page: Page, name: str, language: str
) -> None:
    page.driver.get_log("browser")
    page.open(name, language)
    assert page.driver.get_log("browser") == []
    drawn = page.script("document.querySelector('main').outerHTML")
    assert not re.search(r"\b(NaN|Infinity|undefined|null|\[object)\b", drawn)


class TestShown:
    def test_a_full_run_has_every_chart(self, page: Page) -> None:
        page.open("one")
        assert page.texts("figcaption h3") == english(*CHARTS)

    def test_what_was_not_measured_has_no_chart(self, page: Page) -> None:
        page.open("sparse")
        assert page.texts("figcaption h3") == english("tpot", "e2e", "split_title")
        page.open("bare")
        assert page.texts("figcaption h3") == []

    def test_one_load_makes_no_chart_against_load_and_loads_of_two_runs_make_one(self, page: Page) -> None:
        page.open("one load")
        assert WORDS["load_title"]["en"] not in page.texts("figcaption h3")
        second = run("two at once")
        page.open([run(points=1), replace(second, points=second.points[1:2])])
        assert WORDS["load_title"]["en"] in page.texts("figcaption h3")

    def test_each_run_has_its_headline(self, page: Page) -> None:
        page.open("three")
        assert page.texts(".headline strong") == ["1.62×", "1.20×", "2.10×"]
        page.open("three", "fa")
        assert page.texts(".headline strong") == ["\u2066۱٫۶۲×\u2069", "\u2066۱٫۲۰×\u2069", "\u2066۲٫۱۰×\u2069"]

    @pytest.mark.parametrize(
        ("ratio", "words"),
        [
            (Interval(1.5, 1.2, 1.8), "faster"),
            (Interval(0.8, 0.7, 0.9), "slower"),
            (Interval(1.02, 0.97, 1.06), "no_difference"),
        ],
    )
    def test_the_badge_says_what_the_interval_allows(self, page: Page, ratio: Interval, words: str) -> None:
        first = run().points[0]
        groups = (replace(first.whole, speedup=ratio), *first.groups[1:])
        page.open([replace(run(), points=(replace(first, groups=groups),))])
        assert page.texts(".badge") == english(words)

    def test_runs_of_the_same_name_are_told_apart(self, page: Page) -> None:
        page.open("same names")
        assert page.texts(".cards h3") == ["draft model (1)", "draft model (2)"]

    def test_survival_is_by_category_for_one_run_and_by_run_for_several(self, page: Page) -> None:
        page.open("one")
        assert [row[0] for row in page.rows(WORDS["survival_title"]["en"])] == list(CATEGORIES)
        page.open("three")
        assert [row[0] for row in page.rows(WORDS["survival_title"]["en"])] == ["draft model", "lookup", "eagle"]

    def test_a_chart_of_survival_says_below_it_why_it_may_rise(self, page: Page) -> None:
        page.open("one")
        assert page.texts("figure .drawing + p.soft") == english("survival_note")

    def test_an_incomplete_run_says_so(self, page: Page) -> None:
        page.open("bare")
        assert page.texts(".trouble") == [*english("incomplete"), "It ended before its time: the server went away"]

    def test_warnings_and_differences_are_shown(self, page: Page) -> None:
        page.open("one")
        assert page.texts(".cautions p") == [run().cautions[0].text]
        assert {"chat-03", "the quick", "a quick"} <= set(page.texts("td"))

    def test_runs_of_different_machines_are_marked(self, page: Page) -> None:
        other = replace(run(), plain=replace(run().plain, hardware="another"))
        page.open([run(), other])
        assert english("machines_differ") == page.texts(".trouble")
        page.open("same names")
        assert page.texts(".trouble") == []

    def test_provenance_names_models_prompts_and_commit(self, page: Page) -> None:
        page.open("one")
        told = " ".join(page.texts(".long dd"))
        for part in ("qwen2.5-coder-0.5b-instruct", "cccccccccccc", "core.jsonl (96)", "0123abc", "2026-11-29"):
            assert part in told

    def test_what_the_figures_leave_out_and_who_counted_is_told(self, page: Page) -> None:
        first = run().points[0]
        plain = replace(first.whole.plain, left_out={"empty": 2, "refused": 0}, tokens_from="usage")
        speculative = replace(first.whole.speculative, approximate=True, tokens_from="deliveries")
        groups = (replace(first.whole, plain=plain, speculative=speculative), *first.groups[1:])
        failures = (FailedRequest("plain", "chat-01", "nothing came", "empty"),)
        page.open([replace(run(), points=(replace(first, groups=groups),), failures=failures)])
        assert page.texts(".trouble")[1:] == ["Left out of the figures (plain): empty 2", *english("approximate_side")]
        assert "tokens counted bythe server → nobody: one per delivery" in page.texts(".cards dl div")
        assert {"chat-01", "nothing came", "empty"} <= set(page.texts("td"))

    def test_names_out_of_a_file_stay_text(self, page: Page) -> None:
        hostile = "<script>document.title = 'gone'</script><img src=x>"
        page.open([run(hostile), run("</script>")], title=hostile)
        assert page.texts("h1") == page.texts("head title") == [hostile]
        assert page.texts(".cards h3") == [hostile, "</script>"]
        assert page.script("document.querySelectorAll('img').length") == 0


class TestFigures:
    def spread(self, value: float) -> Distribution:
        return Distribution(48, value, value, value, value, value, (value,) * 21)

    @pytest.mark.parametrize(
        ("value", "shown"), [(0.0, "0"), (0.00123, "1.23 ms"), (0.25, "250 ms"), (1.0, "1 s"), (72.46, "72.5 s")]
    )
    def test_seconds_have_the_unit_that_suits(self, page: Page, value: float, shown: str) -> None:
        first = run().points[0]
        whole = first.whole
        changed = replace(whole, plain=replace(whole.plain, e2e=self.spread(value)))
        page.open([replace(run(), points=(replace(first, groups=(changed, *first.groups[1:])),))])
        assert page.rows(WORDS["e2e"]["en"])[0][2:] == [shown] * 4

    @pytest.mark.parametrize(("size", "shown"), [(999, "999 B"), (1000, "1 kB"), (1_090_000_000, "1.09 GB")])
    def test_sizes_have_the_unit_that_suits(self, page: Page, size: int, shown: str) -> None:
        page.open([replace(run(), speculative_memory=Memory(None, None, None, None, {"lookup": size}))])
        assert page.rows(WORDS["memory_title"]["en"]) == [["draft model", shown, shown]]

    @pytest.mark.parametrize(("rate", "shown"), [(0.125, "12%"), (0.375, "38%"), (0.145, "14%"), (0.62, "62%")])
    def test_shares_are_rounded_halves_to_even(self, page: Page, rate: float, shown: str) -> None:
        first = run().points[0]
        drafts = first.whole.speculative.speculation
        assert drafts is not None
        speculative = replace(first.whole.speculative, speculation=replace(drafts, acceptance_rate=rate))
        groups = (replace(first.whole, speculative=speculative), *first.groups[1:])
        page.open([replace(run(), points=(replace(first, groups=groups),))])
        assert page.rows(WORDS["speed_title"]["en"])[-1][5] == shown

    @pytest.mark.parametrize(
        ("date", "shown"),
        [
            ("2026-11-29T08:05Z", "2026-11-29, 08:05 UTC"),
            ("2026-11-29T08:05:09.25+00:00", "2026-11-29, 08:05 UTC"),
            ("2026-11-29", "2026-11-29"),
            ("2026-11-29T08:05:09+03:30", "2026-11-29T08:05:09+03:30"),
        ],
    )
    def test_a_moment_of_utc_is_a_date_and_a_time_and_others_lose_nothing(
        self, page: Page, date: str, shown: str
    ) -> None:
        page.open([replace(run(), provenance=replace(run().provenance, date=date))])
        assert page.texts(".long dd")[0] == shown
        assert page.texts("header .soft") == [f"Measured {shown} on Made-up processor, 2 cores, 16 GB"]


class TestPersian:
    def test_text_runs_from_the_right(self, page: Page) -> None:
        page.open("mixed", "fa")
        assert page.script("getComputedStyle(document.body).direction") == "rtl"
        name, chart = (
            page.script(f"document.querySelector('{what}').getBoundingClientRect().toJSON()")
            for what in ("svg.chart .name", "svg.chart")
        )
        assert name["right"] > (chart["left"] + chart["right"]) / 2

    def test_figures_have_persian_digits_in_tables_and_charts(self, page: Page) -> None:
        page.open("one", "fa")
        figures = page.texts("td.figure") + page.texts("svg.chart text") + page.texts("svg.chart title")
        assert len(figures) > 100
        assert not [text for text in figures if re.search(r"[0-9]", text)]

    def test_labels_are_persian(self, page: Page) -> None:
        page.open("one", "fa")
        told = page.texts(
            "h1, h2, figcaption p, summary, dt, th, svg.chart text, .legend span, .badge, .headline small"
        )
        latin = {word for text in told for word in re.findall(r"[A-Za-z]{2,}", text)}
        assert latin <= {"draft", "model", "TTFT", "ITL", "TPOT", "KV"}  # the run's own name; terms of the field

    def test_what_the_run_says_in_english_is_told_in_persian(self, page: Page) -> None:
        first = run().points[0]
        few = replace(self.tiny(first.whole.plain), tokens_from="deliveries")
        whole = replace(first.whole, speedup=Interval(1.0, 0.9, 1.1), plain=few, speculative=few)
        point = replace(first, groups=(whole, *first.groups[1:]), saturation=Saturation(True, False, 1.0, 0.0))
        usual = run()
        recorded = replace(
            usual,
            mode="serving",
            provenance=replace(usual.provenance, prompts=PromptMark("core.jsonl", "d" * 64, 5, ("code",), ("fa",))),
            fairness=(Check("target", 1, 2, False), Check("sampling", 1, 2, False), Check("batch", None, 1, None)),
            points=(point,),
            speculative_memory=Memory(None, None, None, None, {}),
            complete=False,
        )
        cautions = find_cautions(recorded, reads_anew=False, faults={"eagle": 2, "draft_model": 1})
        assert len(cautions) == 17
        page.open([replace(run(), cautions=cautions)], "fa")
        told = page.texts(".cautions p")
        assert len(told) == 17 and page.texts(".cautions bdi") == []
        assert not [text for text in told if re.search(r"[0-9]|[A-Za-z]{2,}", text.replace("EAGLE", ""))]

    @staticmethod
    def tiny(side: Any) -> Any:
        short = replace(side.output_length, p50=4.0)
        return replace(side, requests=8, output_length=short, ttft=replace(side.ttft, mean=5.0))

    def test_a_text_that_is_not_known_stays_as_it_was_recorded(self, page: Page) -> None:
        page.open("one", "fa")
        assert page.texts(".cautions bdi") == [run().cautions[0].text]

    def test_the_date_reads_year_month_day_and_then_the_time(self, page: Page) -> None:
        page.open("one", "fa")
        places = page.script(
            """((parts) => {
                const node = document.querySelector('header .soft').firstChild;
                return parts.map((part) => {
                    const [range, from] = [new Range(), node.data.indexOf(part)];
                    range.setStart(node, from);
                    range.setEnd(node, from + part.length);
                    return range.getBoundingClientRect().left;
                });
            })(['۰۸', '۰۵', 'ساعتِ', '۲۰۲۶', '۱۱', '۲۹'])"""
        )
        hour, minute, word, year, month, day = places
        assert hour < minute < word < year < month < day


@pytest.mark.parametrize("language", ["en", "fa"])
@pytest.mark.parametrize("name", ["mixed", "eight", "one"])
class TestLayout:
    @pytest.mark.parametrize("width", [PHONE, 768, DESK])
    def test_nothing_is_wider_than_the_screen(self, page: Page, name: str, language: str, width: int) -> None:
        page.open(name, language, width)
        assert page.script("document.documentElement.scrollWidth") <= width

    @pytest.mark.parametrize("width", [PHONE, DESK])
    def test_every_label_lies_within_its_drawing_and_none_overlap(
        self, page: Page, name: str, language: str, width: int
    ) -> None:
        page.open(name, language, width)
        outside = page.script(
            """[...document.querySelectorAll('svg.chart text')].filter((text) => {
                const [inner, outer] = [text, text.closest('svg')].map((e) => e.getBoundingClientRect());
                return inner.left < outer.left - 1 || inner.right > outer.right + 1
                    || inner.top < outer.top - 1 || inner.bottom > outer.bottom + 1;
            }).map((text) => text.textContent)"""
        )
        assert outside == []
        overlapping = page.script(
            """[...document.querySelectorAll('svg.chart')].flatMap((chart) => {
                const texts = [...chart.querySelectorAll('text')];
                const boxes = texts.map((e) => [e.textContent, e.getBoundingClientRect()]);
                return boxes.flatMap(([one, a], at) => boxes.slice(at + 1).filter(([, b]) =>
                    a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3
                ).map(([other]) => `${one} / ${other}`));
            })"""
        )
        assert overlapping == []

    @pytest.mark.parametrize("width", [PHONE, DESK])
    def test_labels_are_as_large_on_a_phone_as_on_a_desk(
        self, page: Page, name: str, language: str, width: int
    ) -> None:
        page.open(name, language, width)
        scales = page.script("[...document.querySelectorAll('svg.chart')].map((e) => e.getScreenCTM().a)")
        assert scales and all(abs(scale - 1) < 0.02 for scale in scales)

    def test_every_axis_says_what_it_is_of(self, page: Page, name: str, language: str) -> None:
        page.open(name, language)
        titles = page.script(
            "[...document.querySelectorAll('svg.chart')].map((e) => e.querySelectorAll('.axis-title').length)"
        )
        assert min(titles) >= 1


class TestCharts:
    def test_eight_curves_are_drawn_in_a_panel_each(self, page: Page) -> None:
        for runs in ("one", "eight"):
            page.open(runs)
            title = WORDS["survival_title"]["en"]
            curves = page.script(
                f"[...document.querySelectorAll('svg[aria-label=\"{title}\"] .panel')].map((e) => +e.dataset.lines)"
            )
            assert curves == [1] * 8

    def test_both_sides_of_a_run_share_a_panel(self, page: Page) -> None:
        page.open("eight")
        title = WORDS["tpot"]["en"]
        panels = f"[...document.querySelectorAll('svg[aria-label=\"{title}\"] .panel')]"
        assert page.script(f"{panels}.map((e) => +e.dataset.lines)") == [2] * 8

    def test_no_frame_has_more_than_four_lines(self, page: Page) -> None:
        for name in SETS:
            page.open(name)
            lines = page.script(
                """[...document.querySelectorAll('svg.chart:not(:has(.panel)), .panel')]
                .map((e) => e.querySelectorAll('.series').length)"""
            )
            assert max(lines, default=0) <= 4

    @pytest.mark.parametrize("gain", [0.2, 0.9, 1.0, 1.7, 6.0])
    def test_equality_is_always_a_tick_of_an_axis_of_ratios(self, page: Page, gain: float) -> None:
        page.open([run(gain=gain)])
        ticks = page.script(
            f"[...document.querySelector('svg[aria-label=\"{WORDS['speed_title']['en']}\"]')"
            ".querySelectorAll('text:not(.name, .value, .axis-title)')].map((e) => e.textContent)"
        )
        assert "1×" in ticks and len(ticks) >= 2

    def test_charts_are_drawn_anew_when_the_window_changes(self, page: Page) -> None:
        page.open("one", width=DESK)
        wide = page.script("document.querySelector('svg.chart').viewBox.baseVal.width")
        metrics = {"width": PHONE, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        narrow = page.driver.execute_async_script(
            """const done = arguments[0];
            const look = () => requestAnimationFrame(() => requestAnimationFrame(() =>
                done(document.querySelector('svg.chart').viewBox.baseVal.width)));
            look();"""
        )
        assert narrow < PHONE < wide

    def test_the_page_prints(self, page: Page) -> None:
        page.open("one", scheme="dark")
        printed = base64.b64decode(page.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})["data"])
        assert printed.startswith(b"%PDF") and len(printed) > 20_000

    def test_paper_is_white_whatever_the_screen_is(self, page: Page) -> None:
        page.open("one", scheme="dark")
        dark = {"media": "print", "features": [{"name": "prefers-color-scheme", "value": "dark"}]}
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
        ground, ink = page.script(
            "[getComputedStyle(document.querySelector('.card')).backgroundColor, getComputedStyle(document.body).color]"
        )
        page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        assert (ground, ink) == ("rgb(255, 255, 255)", "rgb(26, 36, 33)")


CONTRAST = """((selector) => {
    const parse = (color) => color.match(/[\\d.]+/g).slice(0, 3).map(Number);
    const light = (color) => {
        const linear = (v) => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
        const [r, g, b] = parse(color).map((v) => linear(v / 255));
        return .2126 * r + .7152 * g + .0722 * b;
    };
    const element = document.querySelector(selector);
    const style = getComputedStyle(element);
    const ink = light(element instanceof SVGElement ? style.fill : style.color);
    const ground = light(getComputedStyle(element.closest('.card') ?? document.body).backgroundColor);
    return (Math.max(ink, ground) + .05) / (Math.min(ink, ground) + .05);
})"""


class TestColours:
    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_text_can_be_told_from_its_ground(self, page: Page, scheme: str) -> None:
        page.open("mixed", "en", DESK, scheme)
        selectors = [
            "h1",
            "dt",
            "figcaption p",
            "svg.chart text",
            ".faster .badge",
            ".slower .badge",
            "summary",
            "footer",
        ]
        contrasts = {selector: page.script(f"{CONTRAST}({selector!r})") for selector in selectors}
        assert min(contrasts.values()) >= 4.5, contrasts

    def test_dark_and_light_differ(self, page: Page) -> None:
        grounds = []
        for scheme in ("light", "dark"):
            page.open("mixed", "en", DESK, scheme)
            grounds.append(page.script("getComputedStyle(document.body).backgroundColor"))
        assert grounds[0] != grounds[1]
