"""The page of a report in a real browser: it fits, it reads, it follows the reader's colours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import needs_chromium, open_chromium
from report_runs import bare, run, sparse
from selenium import webdriver

from gamaneh.bench.report.language import Language
from gamaneh.bench.report.page import write_page

pytestmark = needs_chromium

PHONE, DESK = 360, 1280

RUNS = [
    run(),
    run("prompt lookup with a name that is rather long", gain=0.82, seed=3, proposer="lookup"),
    sparse(),
    bare("ended early"),
]


class Page:
    """One report, opened at a width and in a colour scheme."""

    def __init__(self, driver: webdriver.Chrome, folder: Path) -> None:
        self.driver, self.folder = driver, folder
        for language in ("en", "fa"):
            write_page(RUNS, folder / f"{language}.html", Language(language))

    def open(self, language: str, width: int, scheme: str = "light") -> None:
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        preferred = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", preferred)
        self.driver.get((self.folder / f"{language}.html").as_uri())

    def script(self, code: str) -> Any:
        return self.driver.execute_script(f"return {code}")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    driver = open_chromium(browser="ALL")
    try:
        yield Page(driver, tmp_path_factory.mktemp("report"))
    finally:
        driver.quit()


@pytest.mark.parametrize("width", [PHONE, 768, DESK])
@pytest.mark.parametrize("language", ["en", "fa"])
def test_nothing_is_wider_than_the_screen(page: Page, language: str, width: int) -> None:
    page.open(language, width)
    assert page.script("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("language", ["en", "fa"])
def test_every_label_lies_within_its_drawing(page: Page, language: str, width: int) -> None:
    page.open(language, width)
    outside = page.script(
        """[...document.querySelectorAll('svg.chart text')].filter((text) => {
            const [inner, outer] = [text, text.closest('svg')].map((e) => e.getBoundingClientRect());
            return inner.left < outer.left - 1 || inner.right > outer.right + 1
                || inner.top < outer.top - 1 || inner.bottom > outer.bottom + 1;
        }).map((text) => text.textContent)"""
    )
    assert outside == []


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("language", ["en", "fa"])
def test_no_two_labels_of_a_chart_overlap(page: Page, language: str, width: int) -> None:
    page.open(language, width)
    overlapping = page.script(
        """[...document.querySelectorAll('svg.chart')].flatMap((chart) => {
            const boxes = [...chart.querySelectorAll('text')].map((e) => [e.textContent, e.getBoundingClientRect()]);
            return boxes.flatMap(([one, a], at) => boxes.slice(at + 1).filter(([, b]) =>
                a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3
            ).map(([other]) => `${one} / ${other}`));
        })"""
    )
    assert overlapping == []


def test_persian_text_runs_from_the_right(page: Page) -> None:
    page.open("fa", DESK)
    assert page.script("getComputedStyle(document.body).direction") == "rtl"
    name, chart = (
        page.script(f"document.querySelector('{what}').getBoundingClientRect().toJSON()")
        for what in ("svg.chart .name", "svg.chart")
    )
    assert name["right"] > (chart["left"] + chart["right"]) / 2


def test_the_date_of_a_persian_page_reads_year_month_day_and_then_the_time(page: Page) -> None:
    page.open("fa", DESK)
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "selector", ["h1", "dt", "figcaption p", "svg.chart text", ".faster .badge", ".slower .badge", "summary", "footer"]
)
def test_text_can_be_told_from_its_ground(page: Page, selector: str, scheme: str) -> None:
    page.open("en", DESK, scheme)
    assert page.script(f"{CONTRAST}({selector!r})") >= 4.5


def test_dark_and_light_differ(page: Page) -> None:
    grounds = []
    for scheme in ("light", "dark"):
        page.open("en", DESK, scheme)
        grounds.append(page.script("getComputedStyle(document.body).backgroundColor"))
    assert grounds[0] != grounds[1]


def test_the_browser_finds_nothing_to_complain_about(page: Page) -> None:
    page.driver.get_log("browser")
    page.open("en", DESK)
    assert page.driver.get_log("browser") == []
