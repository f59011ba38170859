"""The playground page in a real browser, over a real HTTP server."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import shlex
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import httpx
import pytest
import uvicorn
from chromium import needs_chromium, open_chromium
from decisions import decisions
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait
from torch import Tensor

from gamaneh.control.fallback import Fault
from gamaneh.core import Decision, ReasonCode
from gamaneh.engine.async_engine import AsyncEngine
from gamaneh.options import SpeculationOptions
from gamaneh.server.access import Client, KeyRing
from gamaneh.server.app import build_app
from gamaneh.server.service import Service
from gamaneh.testing import EOS_ID, ByteTokenizer, ScriptedProposer, ScriptedRunner, fixed_output, scripted_engine

pytestmark = needs_chromium

VOCAB = 260
PROMPT = [1, 2, 3]
TEXT = "The quick گمانه jumps\nover the lazy dog."
KEY = "let-me-in"

PATIENCE = 60
"""Seconds to wait for what should take milliseconds: the machine may be busy."""


class ChatTokenizer(ByteTokenizer):
    """Every conversation becomes the same prompt, and is remembered."""

    def __init__(self) -> None:
        self.heard: list[list[tuple[str, str]]] = []

    def chat(self, messages: Sequence[Mapping[str, Any]], tools: object = None) -> list[int]:
        self.heard.append([(each["role"], each["content"]) for each in messages])
        return PROMPT


class Voice:
    """A script that answers with the next of its texts, beginning again at the end."""

    def __init__(self, *texts: str) -> None:
        self.texts, self.begun = texts, 0

    def __call__(self, history: Sequence[int]) -> Tensor:
        self.begun += len(history) == len(PROMPT)
        text = self.texts[(self.begun - 1) % len(self.texts)]
        return fixed_output([*text.encode(), EOS_ID], VOCAB, len(PROMPT))(history)


class Pausing(Voice):
    """A voice that says some tokens of its text and waits until it may go on."""

    def __init__(self, text: str, pause: int) -> None:
        super().__init__(text)
        self.pause, self.go_on = pause, threading.Event()

    def __call__(self, history: Sequence[int]) -> Tensor:
        if len(history) - len(PROMPT) >= self.pause:
            assert self.go_on.wait(PATIENCE)
        return super().__call__(history)


class Playground:
    """A server over a scripted model, which speaks with the voice that it is given."""

    def __init__(self) -> None:
        self.voice = Voice(TEXT)
        script = Voice(TEXT)
        proposer = ScriptedProposer(script, VOCAB, accuracy=0.6)
        speculation = SpeculationOptions(proposer="scripted", draft_length=4)
        runner = ScriptedRunner(lambda history: self.voice(history), VOCAB)
        engine = scripted_engine(runner, ChatTokenizer(), proposer=proposer, speculation=speculation)
        engine.quarantine.leaves_out_slow = False  # how busy the machine is must not change what is shown
        self.tokenizer = ChatTokenizer()
        self.service = Service(AsyncEngine(engine), self.tokenizer, "scripted-model")
        self.address = ""

    def reset(self) -> None:
        self.voice, self.service.keys = Voice(TEXT), KeyRing()
        self.tokenizer.heard.clear()


class Page:
    """The page in the browser, in the words of these tests."""

    def __init__(self, driver: webdriver.Chrome, address: str) -> None:
        self.driver, self.address = driver, address

    def open(self, language: str | None = "en", width: int = 1280) -> None:
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500},
        )
        self.driver.get(self.address)
        script = "localStorage.clear(); sessionStorage.clear();"
        self.driver.execute_script(script + (f"localStorage['gamaneh-language'] = '{language}'" if language else ""))
        self.driver.get(self.address)
        self.until(lambda: self.find("#model").text != "…")

    def until(self, condition: Any) -> Any:
        return WebDriverWait(self.driver, PATIENCE, poll_frequency=0.02).until(lambda _: condition())

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def script(self, code: str) -> Any:
        return self.driver.execute_script(f"return {code}")

    def start(self, button: str = "#run", prompt: str = "Say it.") -> None:
        self.fill("#prompt", prompt)
        self.find(button).click()

    def run(self, button: str = "#run") -> None:
        """Start, and wait until everything has ended."""
        self.start(button)
        self.until(lambda: self.find("#run").is_enabled() and not self.find("#stop").is_displayed())

    def reach_token(self, place: int) -> None:
        """Go there by keyboard alone: into the results, on to the first token, along the answer."""
        self.driver.execute_script("document.querySelector('#results').focus()")
        for key in (Keys.TAB, *[Keys.ARROW_RIGHT] * place):
            self.driver.switch_to.active_element.send_keys(key)

    def fill(self, selector: str, text: str) -> None:
        self.find(selector).clear()
        self.find(selector).send_keys(text)

    def module(self, name: str, expression: str) -> Any:
        """What an expression over one of the page's own modules says."""
        load = f"import('/page/{name}').then((module) => arguments[0]({expression}))"
        return self.driver.execute_async_script(load)

    def origins(self, lane: int) -> set[str]:
        return set(
            self.script(f"[...document.querySelectorAll('.answer')[{lane}].children].map((e) => e.dataset.origin)")
        )

    def answer(self, lane: int = 0) -> str:
        return self.script(f"document.querySelectorAll('.answer')[{lane}].textContent")


@pytest.fixture(scope="module")
def served() -> Iterator[Playground]:
    served = Playground()
    server = uvicorn.Server(uvicorn.Config(build_app(served.service), port=0, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    served.service.engine.start()
    thread.start()
    while not server.started:
        thread.join(0.01)
        assert thread.is_alive()
    served.address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"
    yield served
    server.should_exit = True
    thread.join()
    served.service.engine.stop()


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    profile = tmp_path_factory.mktemp("chromium")
    flags = ("--lang=en-US", "--window-size=1280,900", f"--user-data-dir={profile}")
    driver = open_chromium(*flags, browser="ALL", performance="ALL")
    yield driver
    driver.quit()


@pytest.fixture
def page(driver: webdriver.Chrome, served: Playground) -> Page:
    served.reset()
    page = Page(driver, served.address)
    page.open()
    return page


@contextmanager
def crowded(service: Service) -> Iterator[None]:
    """All of the server's room is taken."""
    ticket = service.gate.enter(Client(), service.gate.capacity)
    yield
    ticket.release()


def hashed_key() -> KeyRing:
    return KeyRing([f"tester={hashlib.sha256(KEY.encode()).hexdigest()}"])


def logged(driver: webdriver.Chrome) -> list[str]:
    return [entry["message"] for entry in driver.get_log("browser")]


def requested(driver: webdriver.Chrome) -> list[str]:
    """Addresses that were asked for since the last call."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    return [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]


def api(address: str) -> dict[str, Any]:
    """What the API tells about the same answer."""
    wants = {"tokens": True, "metrics": True}
    body = {"messages": [{"role": "user", "content": "Say it."}], "temperature": 0, "speculation": wants}
    told: dict[str, Any] = httpx.post(f"{address}v1/chat/completions", json=body, timeout=PATIENCE).json()["gamaneh"]
    return told


def told(address: str) -> list[dict[str, Any]]:
    """The tokens of the same answer."""
    tokens: list[dict[str, Any]] = api(address)["tokens"]
    assert {"accepted", "correction", "bonus", "plain"} == {token["origin"] for token in tokens}
    return tokens


def shown_tokens(address: str) -> list[dict[str, Any]]:
    """Those that are on the page by themselves: parts of a character belong to the token that completes it."""
    return [each for each in told(address) if each["text"]]


def reasons(page: Page, made: Sequence[Decision]) -> list[str]:
    """What the page says of these decisions, in its language."""
    told = [{"reason": each.reason, "code": each.code, "details": asdict(each.details)} for each in made]
    said: list[str] = page.module("reasons.js", f"{json.dumps(told)}.map(module.reasonOf)")
    return said


def placeholders(text: str) -> set[str]:
    return set(re.findall(r"\{\w+\}", text))


CONTRASTS = """(() => {
  const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const linear = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const ground = (element) => {
    const colour = channels(getComputedStyle(element).backgroundColor);
    return colour[3] === 0 && element.parentElement ? ground(element.parentElement) : colour;
  };
  const ratio = (element) => {
    const pair = [channels(getComputedStyle(element).color), ground(element)].map(luminance).sort((a, b) => b - a);
    return (pair[0] + 0.05) / (pair[1] + 0.05);
  };
  const speaks = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  return [...document.body.querySelectorAll('*')]
    .filter((element) => element.checkVisibility() && speaks(element) && !element.closest(':disabled, svg'))
    .filter((element) => ratio(element) < 4.5)
    .map((element) => `${element.outerHTML.slice(0, 80)} ${ratio(element).toFixed(2)}`);
})()"""
"""Elements whose text has a contrast below 4.5 (WCAG 2.2, 1.4.3) with what is behind it."""


def test_stream_appears_whole(page: Page) -> None:
    page.run()
    assert page.answer() == TEXT


def test_tokens_carry_the_origins_that_the_server_told(page: Page) -> None:
    page.run()
    shown = [
        (each.get_attribute("textContent"), each.get_attribute("data-origin")) for each in page.all(".answer .token")
    ]
    assert shown == [(each["text"], each["origin"]) for each in told(page.address) if each["text"]]


def test_origins_differ_in_their_underlines_too(page: Page) -> None:
    page.run()
    styles = {
        each.get_attribute("data-origin"): f"{each.value_of_css_property('text-decoration-line')} "
        f"{each.value_of_css_property('text-decoration-style')}"
        for each in page.all(".answer .token")
    }
    assert len(set(styles.values())) == 4


def test_one_tab_stop_leads_into_the_answer(page: Page) -> None:
    page.run()
    assert len(page.all(".answer [tabindex='0']")) == 1


def test_keyboard_opens_details_with_probability_and_refused_candidates(page: Page) -> None:
    page.run()
    at = next(place for place, each in enumerate(shown_tokens(page.address)) if each["refused"])
    page.reach_token(at)
    words = page.find("#popover").text
    assert "correction" in words
    assert "100%" in words
    assert len(page.all("#popover .refused")) == len(shown_tokens(page.address)[at]["refused"])
    assert page.driver.switch_to.active_element.get_attribute("aria-describedby") == "popover"


def test_escape_closes_details(page: Page) -> None:
    page.run()
    page.reach_token(1)
    page.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert not page.find("#popover").is_displayed()


def test_character_of_several_tokens_shows_them_all(page: Page) -> None:
    page.run()
    page.reach_token([each["text"] for each in shown_tokens(page.address)].index("گ"))
    assert len(page.all("#popover dl")) == len("گ".encode())


def test_details_stay_inside_a_narrow_window(page: Page) -> None:
    page.open(width=360)
    page.run()
    page.reach_token(18)
    box = page.script("document.querySelector('#popover').getBoundingClientRect().toJSON()")
    assert box["left"] >= 0
    assert box["right"] <= 360


def test_race_says_same_text(page: Page) -> None:
    page.run("#race")
    assert page.find("#verdict").text.startswith("Same text: yes.")
    assert [page.answer(0), page.answer(1)] == [TEXT, TEXT]


@pytest.mark.parametrize("order", ["turns", "together"])
def test_race_compares_plain_with_speculative(page: Page, order: str) -> None:
    Select(page.find("#order")).select_by_value(order)
    page.run("#race")
    plain, speculative = (page.origins(lane) for lane in (0, 1))
    assert plain == {"plain"}
    assert speculative >= {"accepted", "correction"}


def test_race_says_where_texts_part(page: Page, served: Playground) -> None:
    served.voice = Voice(TEXT, TEXT.replace("quick", "quiet"))
    page.run("#race")
    assert page.find("#verdict").text.startswith("Same text: no. They part at character 8.")


def test_an_answer_of_an_approximate_rule_says_so(page: Page) -> None:
    page.run()
    assert not page.find(".approximate").is_displayed()
    Select(page.find("#rule")).select_by_value("typical")
    page.run()
    assert page.find(".approximate").text.startswith("Approximate: the rule typical")


def test_acceptance_is_what_the_server_counted(page: Page) -> None:
    page.run()
    rate = api(page.address)["speculation"]["acceptance_rate"]
    assert page.all(".lane .figures dd")[3].text == f"{rate:.0%}"


def test_charts_say_their_figures_in_words(page: Page) -> None:
    page.run()
    labels = [chart.get_attribute("aria-label") for chart in page.all("#charts svg")]
    rounds = sum(each["origin"] != "accepted" for each in told(page.address))
    assert [label.partition(" over ")[0] for label in labels] == ["Acceptance", "Draft length", "Tokens/s"]
    assert all(f" over {rounds} rounds: mean " in label for label in labels)


def test_mean_acceptance_of_the_chart_is_that_of_the_answer(page: Page) -> None:
    page.run()
    assert page.find("#charts b").text == page.all(".lane .figures dd")[3].text


def test_rounds_are_bars_and_axes_have_names(page: Page) -> None:
    page.run()
    assert len(page.all("#charts figure:nth-child(2) rect")) == sum(
        each["origin"] != "accepted" for each in told(page.address)
    )
    assert [each.text for each in page.all("#charts text:nth-of-type(3)")] == [
        "accepted / drafted",
        "candidates in the draft",
        "tokens per second",
    ]


def test_state_of_the_server_is_shown(page: Page) -> None:
    page.until(lambda: "scripted" in page.find("#state").text)


def test_state_of_any_shape_is_shown_in_words(page: Page) -> None:
    state = '{proposers: [{name: "lookup", reason: "it is slow", survival: [0.5, 0.25]}], empty: {}, none: null}'
    assert page.module("state.js", f"module.explain({state}).textContent") == (
        "proposersnamelookupreasonit is slowsurvival0.5000, 0.2500empty–none–"
    )


def test_answer_comes_with_the_reasons_of_its_rounds(page: Page) -> None:
    page.run()
    page.find(".lane summary").click()
    assert "draft length fixed" in page.find(".lane details").text


def test_all_reasons_are_tried() -> None:
    assert {each.code for each in decisions()} == set(ReasonCode)


def test_reasons_in_english_are_those_of_the_server(page: Page) -> None:
    assert reasons(page, decisions()) == [each.reason for each in decisions()]


def test_reasons_in_persian_are_persian_but_for_names(page: Page) -> None:
    page.open("fa")
    said = reasons(page, decisions())
    others = [re.sub("\u2068.*?\u2069|KV", "", each) for each in said]
    assert all(re.search("[\u0600-\u06ff]{2}", each) for each in others)
    assert [each for each in others if re.search("[A-Za-z0-9{}]", each)] == []
    assert len(set(said)) == len({(each.code, each.details) for each in decisions()})


@pytest.mark.parametrize("fault", Fault)
def test_failures_of_proposers_are_told_in_persian(page: Page, fault: Fault) -> None:
    page.open("fa")
    state = json.dumps({"state": "quarantine", "reason": "OSError: gone", "fault": fault})
    text = page.module("state.js", f"module.explain({state}).textContent")
    assert re.search("[\u0600-\u06ff]{2}", text)
    assert ("OSError: gone" in text) is (fault is not Fault.SLOW)
    assert "fault" not in text


def test_reasons_of_an_answer_change_with_the_language(page: Page) -> None:
    page.run()
    page.find(".lane summary").click()
    page.find("#language").click()
    assert "طول پیش‌نویس را یک گزینه ثابت کرده است" in page.find(".lane details").text
    assert "draft length fixed" not in page.find(".lane details").text


def test_what_reasons_are_made_of_is_not_shown_beside_them(page: Page) -> None:
    page.run()
    names = [each.get_attribute("textContent") for each in page.all(".lane details dt")]
    assert "reason" in names
    assert not {"code", "details"} & set(names)


def test_proposers_of_the_server_can_be_chosen(page: Page) -> None:
    assert "scripted" in [option.get_attribute("value") for option in Select(page.find("#proposer")).options]


def test_language_switch_turns_the_page(page: Page) -> None:
    page.find("#language").click()
    assert page.script("document.documentElement.dir") == "rtl"
    assert page.script("document.documentElement.lang") == "fa"
    assert page.find("#run").text == "پاسخ بده"


def test_language_is_remembered(page: Page) -> None:
    page.find("#language").click()
    page.driver.refresh()
    page.until(lambda: page.script("document.documentElement.dir") == "rtl")


def test_both_languages_have_the_same_texts(page: Page) -> None:
    texts = page.module("text.js", "Object.values(module.TEXTS).map((texts) => Object.entries(texts))")
    english, persian = (dict(each) for each in texts)
    assert [*english] == [*persian]
    assert all(placeholders(english[name]) == placeholders(persian[name]) for name in english)


def test_page_uses_only_texts_that_exist(page: Page) -> None:
    names = page.module("text.js", "Object.keys(module.TEXTS.en)")
    used = page.script("[...document.querySelectorAll('[data-text]')].map((element) => element.dataset.text)")
    assert set(used) <= set(names)


@pytest.mark.parametrize("language", ["en", "fa"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(page: Page, language: str, scheme: str) -> None:
    page.open(language)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    page.run("#race")
    assert page.script(CONTRASTS) == []


@pytest.mark.parametrize("language", ["en", "fa"])
def test_nothing_overflows_on_a_phone(page: Page, language: str) -> None:
    page.open(language, width=360)
    page.find("#settings summary").click()
    page.run("#race")
    assert page.script("document.documentElement.scrollWidth") == 360


def test_every_field_has_a_name(page: Page) -> None:
    fields = page.all("input, select, textarea, button, summary")
    assert [
        field.get_attribute("outerHTML") for field in fields if field.is_displayed() and not field.accessible_name
    ] == []


def test_end_is_announced_politely(page: Page) -> None:
    page.run()
    status = page.find("#status")
    assert status.get_attribute("aria-live") == "polite"
    assert status.get_attribute("textContent").startswith(f"Finished: {len(TEXT.encode())} tokens")


def test_key_is_asked_for_and_used(page: Page, served: Playground) -> None:
    served.service.keys = hashed_key()
    page.start()
    page.until(lambda: page.find("#key").is_displayed())
    assert "wants an API key" in page.find("#problem").text
    page.find("#key").send_keys(KEY)
    page.run()
    assert page.answer() == TEXT
    assert KEY not in page.script("JSON.stringify(localStorage)")


def test_busy_server_is_told_in_words(page: Page, served: Playground) -> None:
    with crowded(served.service):
        page.run()
        seconds = served.service.gate.retry_after()
    assert page.find("#problem").text == f"The server is busy. Try again in {seconds} seconds."


def test_refusal_repeats_the_words_of_the_server(page: Page) -> None:
    page.find("input[value='fixed']").click()
    page.fill("#draft-length", "99")
    page.run()
    assert "speculation.draft_length must be at most 15" in page.find("#problem").text


def test_problem_goes_away_with_the_next_run(page: Page, served: Playground) -> None:
    with crowded(served.service):
        page.run()
    page.run()
    assert not page.find("#problem").is_displayed()


def test_page_works_without_errors_and_stays_at_home(page: Page) -> None:
    logged(page.driver), requested(page.driver)
    page.open()
    page.run()
    page.run("#race")
    page.find("#language").click()
    assert logged(page.driver) == []
    addresses = requested(page.driver)
    assert f"{page.address}page/app.js" in addresses
    assert [address for address in addresses if not address.startswith(page.address)] == []


def test_policy_blocks_other_servers(page: Page) -> None:
    page.driver.execute_script("fetch('http://127.0.0.1:9/').catch(() => {})")
    page.until(lambda: any("Content Security Policy" in message for message in logged(page.driver)))


def test_files_carry_the_policy_and_are_not_sent_twice(served: Playground) -> None:
    first = httpx.get(f"{served.address}page/style.css")
    again = httpx.get(f"{served.address}page/style.css", headers={"If-None-Match": first.headers["ETag"]})
    assert "default-src 'none'" in first.headers["Content-Security-Policy"]
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")


def test_next_message_carries_the_conversation(page: Page, served: Playground) -> None:
    page.find("#system").send_keys("Be brief.")
    page.run()
    assert page.find("#prompt").get_attribute("value") == ""
    page.start(prompt="And now?")
    page.until(lambda: len(served.tokenizer.heard) == 2)
    first = [("system", "Be brief."), ("user", "Say it.")]
    assert served.tokenizer.heard == [first, [*first, ("assistant", TEXT), ("user", "And now?")]]


def test_asking_again_leaves_the_last_answer_out(page: Page, served: Playground) -> None:
    page.run()
    page.find("#again").click()
    page.until(lambda: len(served.tokenizer.heard) == 2 and page.find("#run").is_enabled())
    assert served.tokenizer.heard[1] == [("user", "Say it.")]
    assert page.answer() == TEXT


def test_new_conversation_forgets_the_old_one(page: Page, served: Playground) -> None:
    page.run()
    page.find("#new").click()
    page.run()
    assert served.tokenizer.heard[1] == [("user", "Say it.")]


def test_refused_message_stays_in_its_field(page: Page, served: Playground) -> None:
    with crowded(served.service):
        page.run()
    assert page.find("#prompt").get_attribute("value") == "Say it."


def test_escape_stops_the_answer_and_keeps_what_came(page: Page, served: Playground) -> None:
    served.voice = voice = Pausing(TEXT, pause=9)
    page.start()
    page.until(lambda: page.answer().startswith("The"))
    assert page.find(".badge").text == "answering"
    page.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    page.until(lambda: page.find(".badge").text == "stopped")
    voice.go_on.set()
    page.until(lambda: page.find("#run").is_enabled())
    assert TEXT.startswith(page.answer())
    assert page.find("#status").get_attribute("textContent") == "Stopped."


def test_answer_at_its_limit_is_marked_as_cut_off(page: Page) -> None:
    page.fill("#max-tokens", "3")
    page.run()
    assert page.find(".badge").text == "cut off"


def test_race_shows_both_clocks(page: Page) -> None:
    page.run("#race")
    clocks = [each.text for each in page.all(".clock")]
    assert all(re.fullmatch(r"\d+\.\d s", clock) for clock in clocks)
    plain, speculative = clocks
    assert f"Plain took {plain}, speculative {speculative}." in page.find("#verdict").text


def test_link_carries_the_settings_but_no_key(page: Page, served: Playground) -> None:
    served.service.keys = hashed_key()
    page.start()
    page.until(lambda: page.find("#key").is_displayed())
    page.find("#key").send_keys(KEY)
    page.run()
    page.fill("#prompt", "سلام & <b>")
    page.fill("#temperature", "0.7")
    page.driver.execute_script("document.querySelector('#top-p').value = '0.9'")
    page.find("input[value='fixed']").click()
    page.find("#copy-link").click()
    link = page.script("location.href")
    page.driver.get("about:blank")
    page.driver.get(link)
    page.until(lambda: page.find("#prompt").get_attribute("value") == "سلام & <b>")
    assert page.script("[document.querySelector('#temperature').value, document.querySelector('#top-p').value]") == [
        "0.7",
        "0.9",
    ]
    assert page.find("#draft-length").is_enabled()
    assert KEY not in link


def test_broken_link_is_told_in_words(page: Page) -> None:
    page.driver.execute_script("location.hash = '#%7Bno'")
    page.until(lambda: "holds no settings" in page.find("#problem").text)


def test_request_as_curl_is_one_command_with_the_whole_request(page: Page) -> None:
    page.fill("#prompt", 'It\'s "here"\n$HOME گمانه')
    page.find("#code summary").click()
    page.until(lambda: page.find("#curl").text)
    words = shlex.split(page.find("#curl").text)
    assert words[:2] == ["curl", f"{page.address}v1/chat/completions"]
    assert json.loads(words[-1]) == {
        "model": "scripted-model",
        "messages": [{"role": "user", "content": 'It\'s "here"\n$HOME گمانه'}],
        "max_tokens": 128,
        "temperature": 0,
    }


def test_request_as_python_sends_the_same(page: Page) -> None:
    page.driver.execute_script('document.querySelector(\'#schema\').value = \'{"type": "object", "x": [true, null]}\'')
    page.driver.execute_script("document.querySelector('#top-k').value = '5'")
    page.fill("#prompt", 'It\'s "here"')
    page.find("#code summary").click()
    page.until(lambda: page.find("#python").text)
    calls = [each for each in ast.walk(ast.parse(page.find("#python").text)) if isinstance(each, ast.Call)]
    (create,) = [each for each in calls if ast.unparse(each.func).endswith("create")]
    sent = {str(each.arg): ast.literal_eval(each.value) for each in create.keywords}
    assert sent["messages"] == [{"role": "user", "content": 'It\'s "here"'}]
    assert sent["extra_body"] == {"top_k": 5}
    assert sent["response_format"]["json_schema"]["schema"] == {"type": "object", "x": [True, None]}


def test_json_that_is_none_is_told_before_anything_is_sent(page: Page, served: Playground) -> None:
    page.driver.execute_script("document.querySelector('#tools').value = '[{'")
    page.run()
    assert page.find("#problem").text.startswith("Tools, a JSON list must be JSON: ")
    assert served.tokenizer.heard == []


def test_markup_is_shown_as_text(page: Page, served: Playground) -> None:
    markup = "<img src=x onerror=alert(1)>"
    served.voice = Voice(markup)
    page.start(prompt=markup)
    page.until(lambda: page.find("#run").is_enabled())
    page.run()
    assert page.answer() == markup
    assert [each.text for each in page.all("#turns p")] == [markup, markup, "Say it."]
    assert page.all("#results img") == []


def test_marks_are_a_line_or_a_tint_or_nothing(page: Page) -> None:
    page.run()
    found = {}
    for name in ("line", "tint", "none"):
        Select(page.find("#marks")).select_by_value(name)
        token = page.find(".answer .accepted")
        ground = token.value_of_css_property("background-color")
        found[name] = (token.value_of_css_property("text-decoration-line"), ground != "rgba(0, 0, 0, 0)")
    assert found == {"line": ("underline", False), "tint": ("none", True), "none": ("none", False)}


def test_summary_in_persian_is_persian_but_for_names(page: Page) -> None:
    page.open("fa")
    page.run()
    page.until(lambda: page.all(".facts dd"))
    text = "\n".join(each.text for each in page.all(".facts dt, .facts dd"))
    assert re.findall("[A-Za-z0-9]+", re.sub("\u2068.*?\u2069", "", text)) == ["KV"]


def test_raw_values_are_folded_away(page: Page) -> None:
    page.until(lambda: page.all("#state details"))
    assert not page.find("#state .state").is_displayed()
    page.find("#state summary").click()
    assert "verify seconds" in page.find("#state .state").text


def test_answer_is_in_view_on_a_phone(page: Page) -> None:
    page.open(width=320)
    page.run()
    box = page.script("document.querySelector('.answer').getBoundingClientRect().toJSON()")
    assert 0 <= box["top"] < 900


def test_copied_answer_is_its_text(page: Page) -> None:
    page.driver.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    )
    page.run()
    page.find("#copy-answer").click()
    page.until(lambda: page.find("#status").get_attribute("textContent") == "Copied.")
    read = "navigator.clipboard.readText().then(arguments[0], (error) => arguments[0](String(error)))"
    assert page.driver.execute_async_script(read) == TEXT
