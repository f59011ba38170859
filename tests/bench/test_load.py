"""The load benchmark counts what arrives, and compares equal work."""

from __future__ import annotations

import asyncio
import json

import pytest

from gamaneh.bench import load
from gamaneh.bench.load import QUICK, Effort, describe, make_asks, measure_cell
from gamaneh.bench.prompt_set import load_prompts
from gamaneh.bench.traffic import Answer, Ask, Delivery, closed_loop
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
