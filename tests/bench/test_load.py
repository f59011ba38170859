"""The load benchmark counts what arrives, and compares equal work."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from gamaneh.bench import load
from gamaneh.bench.http_client import HttpClient, ServerRefused
from gamaneh.bench.load import QUICK, Effort, describe, make_asks, measure_cell
from gamaneh.bench.prompt_set import load_prompts
from gamaneh.bench.traffic import Answer, Ask, Delivery, answer_one, closed_loop
from gamaneh.errors import InvalidOption
from gamaneh.options import SamplingParams


class Echo:
    """Delivers the prompt word by word, and remembers how many were answered at once."""

    def __init__(self) -> None:
        self.asked: list[Ask] = []
        self.now = self.most = 0

    async def stream(self, ask):
        self.asked.append(ask)
        self.now += 1
        self.most = max(self.most, self.now)
        for word in ask.text.split()[:3]:
            await asyncio.sleep(0)
            yield Delivery(word, 1)
        self.now -= 1


def asks(count: int) -> list[Ask]:
    return [Ask(f"question number {at}", SamplingParams()) for at in range(count)]


def test_as_many_requests_as_wanted_run_at_once_and_all_are_answered_in_order() -> None:
    client = Echo()
    traffic = asyncio.run(closed_loop(client, asks(11), 4))
    assert client.most == 4
    assert [answer.text for answer in traffic.answers] == [f"questionnumber{at}" for at in range(11)]
    assert traffic.tokens_per_second * traffic.seconds == pytest.approx(33)


def test_times_are_taken_between_deliveries_with_tokens() -> None:
    answer = Answer(sent=1.0)
    for tokens, now in [(2, 3.0), (0, 4.0), (1, 6.0), (3, 7.0)]:
        answer.take(Delivery("x", tokens), now)
    assert (answer.ttft, answer.gaps, answer.e2e, answer.tokens) == (2.0, [3.0, 1.0], 6.0, 6)


def test_plain_and_adaptive_runs_do_the_same_work() -> None:
    prompts = load_prompts()
    plain, adaptive = (make_asks("prose", prompts, 7, 20, speculate=speculate) for speculate in (False, True))
    assert [(ask.text, ask.params) for ask in plain] == [(ask.text, ask.params) for ask in adaptive]
    assert {ask.params.temperature for ask in plain} == {1.0}
    assert len({ask.params.seed for ask in plain}) == 7


def test_runs_alternate_and_the_order_is_swapped() -> None:
    client = Echo()
    cell = asyncio.run(measure_cell(client, "code", load_prompts(), 2, Effort(tokens=3, waves=1, pairs=2)))
    runs = [ask.speculate for ask in client.asked][::2]
    assert runs == [True, False, False, True, True, False]
    assert (cell.requests, cell.differences) == (4, 0)
    assert cell.plain.itl.count == 8


def test_the_table_has_a_line_for_each_side_of_a_cell() -> None:
    cell = asyncio.run(measure_cell(Echo(), "code", load_prompts(), 1, QUICK))
    header, adaptive, plain = describe([cell]).splitlines()
    assert header.split()[:2] == ["kind", "conc."]
    assert adaptive.split()[:2] == ["code", "1"]
    assert "plain" in plain


def test_the_whole_comes_as_one_line_of_json(monkeypatch, capsys) -> None:
    monkeypatch.setattr(load, "open_client", lambda options: _Given(Echo()))
    assert load.main(["--quick", "--kinds", "persian", "--concurrency", "1", "2"]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [(cell["kind"], cell["concurrency"]) for cell in document["cells"]] == [("persian", 1), ("persian", 2)]


@pytest.mark.parametrize("option", ["--tokens", "--waves", "--pairs"])
def test_no_work_is_refused_by_name(option: str, capsys) -> None:
    assert load.main([option, "0", "--model", "nothing"]) == load.EXIT_ERROR
    assert f"{option} must be at least 1, got 0" in capsys.readouterr().err


def test_a_kind_without_prompts_is_refused() -> None:
    with pytest.raises(InvalidOption, match="prompts must hold one of category code"):
        make_asks("code", [], 1, 1, speculate=True)


class _Given:
    def __init__(self, client) -> None:
        self.client = client

    async def __aenter__(self):
        return self.client

    async def __aexit__(self, *_) -> None:
        return None


class TestHttp:
    ASK = Ask("say something", SamplingParams(max_tokens=5, seed=3), speculate=False)

    def answer(self, events: list[str], status: int = 200) -> tuple[Answer, list[dict]]:
        bodies: list[dict] = []

        def respond(request: httpx.Request) -> httpx.Response:
            if request.url.path == "/v1/models":
                return httpx.Response(200, json={"data": [{"id": "tiny"}]})
            bodies.append(json.loads(request.content))
            return httpx.Response(status, text="".join(f"data: {event}\n\n" for event in events))

        async def go() -> Answer:
            async with HttpClient("http://server", transport=httpx.MockTransport(respond)) as client:
                return await answer_one(client, self.ASK)

        return asyncio.run(go()), bodies

    def event(self, text: str, tokens: int) -> str:
        chunk = {"choices": [{"delta": {"content": text}}], "gamaneh": {"tokens": [{"text": "x"}] * tokens}}
        return json.dumps(chunk)

    def test_text_and_tokens_of_a_stream_are_collected(self) -> None:
        answer, (body,) = self.answer([self.event("one ", 1), self.event("two", 3), "[DONE]"])
        assert (answer.text, answer.tokens, len(answer.deliveries)) == ("one two", 4, 2)
        assert (body["model"], body["max_tokens"], body["seed"]) == ("tiny", 5, 3)
        assert body["speculation"]["enabled"] is False

    def test_a_refusal_is_raised(self) -> None:
        with pytest.raises(ServerRefused, match="429"):
            self.answer(["busy"], status=429)

    def test_an_error_in_the_stream_is_raised(self) -> None:
        with pytest.raises(ServerRefused, match="broke"):
            self.answer([self.event("one", 1), json.dumps({"error": {"message": "broke"}})])
