"""The load benchmark counts what arrives, and compares equal work."""

from __future__ import annotations

import asyncio
import json

import pytest

from gamaneh.bench import load
from gamaneh.bench.load_cells import QUICK, Arm, Effort, make_asks, measure_cell
from gamaneh.bench.load_table import describe, headline
from gamaneh.bench.prompt_set import load_prompts
from gamaneh.bench.traffic import Answer, Ask, Delivery, EngineClient, closed_loop
from gamaneh.errors import InvalidOption
from gamaneh.options import SamplingParams
from gamaneh.testing import tiny_model


class Echo:
    """Delivers the prompt word by word, and remembers how many were answered at once."""

    def __init__(self, name: str = "", log: list[str] | None = None, pause: float = 0.0) -> None:
        self.asked: list[Ask] = []
        self.now = self.most = 0
        self.name, self.log, self.pause = name, [] if log is None else log, pause

    async def stream(self, ask):
        self.asked.append(ask)
        self.log.append(f"{self.name} {'on' if ask.speculate else 'off'}")
        self.now += 1
        self.most = max(self.most, self.now)
        for word in ask.text.split()[:3]:
            await asyncio.sleep(self.pause)
            yield Delivery(word, 1)
        self.now -= 1


def asks(count: int) -> list[Ask]:
    return [Ask(f"question number {at}", SamplingParams()) for at in range(count)]


def both(client: Echo) -> dict[str, Arm]:
    """Plain and adaptive."""
    return {"plain": Arm(client, False), "adaptive": Arm(client, True)}


def all_three(able: Echo, bare: Echo) -> dict[str, Arm]:
    return {"bare": Arm(bare, False), **both(able)}


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
    cell = asyncio.run(measure_cell(both(client), "code", load_prompts(), 2, Effort(tokens=3, waves=1, pairs=2)))
    runs = [ask.speculate for ask in client.asked][::2]
    assert runs == [True, False, False, True, True, False]
    assert (cell.requests, cell.differences) == (4, 0)
    assert cell.plain.itl.count == 8
    assert (cell.bare, cell.off) == (None, None)


def test_bare_takes_turns_beside_plain() -> None:
    log: list[str] = []
    arms = all_three(Echo("able", log), Echo("bare", log))
    asyncio.run(measure_cell(arms, "code", load_prompts(), 1, Effort(tokens=3, waves=1, pairs=1)))
    assert log == ["able on", "able off", "bare off", "bare off", "able off", "able on"]


def test_what_switching_off_leaves_is_plain_over_bare() -> None:
    effort = Effort(tokens=3, waves=1, pairs=2)
    cell = asyncio.run(measure_cell(all_three(Echo(pause=0.01), Echo()), "code", load_prompts(), 1, effort))
    assert cell.off is not None and cell.bare is not None
    assert cell.off.low <= cell.off.value <= cell.off.high < 1.0
    assert cell.plain.tokens_per_second < cell.bare.tokens_per_second


def test_texts_of_a_bare_service_that_differ_are_counted() -> None:
    class Other(Echo):
        async def stream(self, ask):
            yield Delivery("something else", 1)

    cell = asyncio.run(measure_cell(all_three(Echo(), Other()), "code", load_prompts(), 2, QUICK))
    assert cell.differences == cell.requests == 2


def test_without_adaptive_only_the_cost_of_off_is_told() -> None:
    arms = {"bare": Arm(Echo(), False), "plain": Arm(Echo(), False)}
    cell = asyncio.run(measure_cell(arms, "code", load_prompts(), 1, QUICK))
    assert (cell.adaptive, cell.ratio) == (None, None)
    assert headline(cell).startswith("code, 1 at once: plain / bare ")


def test_the_table_has_a_line_for_each_arm_of_a_cell() -> None:
    cell = asyncio.run(measure_cell(all_three(Echo(), Echo()), "code", load_prompts(), 1, QUICK))
    header, plain, adaptive, bare = describe([cell]).splitlines()
    assert header.split()[:3] == ["kind", "conc.", "arm"]
    assert plain.split()[:3] == ["code", "1", "plain"]
    assert adaptive.split()[0] == "adaptive" and f"{cell.ratio.value:.3f}" in adaptive
    assert bare.split()[0] == "bare" and f"{cell.off.value:.3f}" in bare and bare.endswith("plain / bare")


def test_the_whole_comes_as_one_line_of_json(monkeypatch, capsys) -> None:
    monkeypatch.setattr(load, "open_arms", lambda options: _Given(all_three(Echo(), Echo())))
    command = ["--quick", "--kinds", "persian", "--concurrency", "1", "2", "--arms", "adaptive", "bare"]
    assert load.main(command) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [(cell["kind"], cell["concurrency"]) for cell in document["cells"]] == [("persian", 1), ("persian", 2)]
    assert document["arms"] == ["plain", "adaptive", "bare"]
    assert set(document["cells"][0]["off"]) == {"value", "low", "high"}


def test_a_bare_engine_has_no_proposers_and_says_the_same(monkeypatch) -> None:
    monkeypatch.setattr(load, "load", lambda model, dtype: tiny_model())
    monkeypatch.setattr("gamaneh.bench.traffic.as_chat", lambda tokenizer, text: tokenizer.encode(text[:20]))
    options = load._parser().parse_args(["--arms", "bare"])

    async def measure():
        async with load.open_arms(options) as arms:
            proposers = {name: set(_client(arm).engine.engine.proposers) for name, arm in arms.items()}
            return proposers, await measure_cell(arms, "persian", load_prompts(), 1, Effort(tokens=4, waves=1, pairs=1))

    proposers, cell = asyncio.run(measure())
    assert proposers["bare"] == set() < proposers["plain"]
    assert cell.differences == 0


def test_a_server_cannot_be_asked_to_be_bare(capsys) -> None:
    assert load.main(["--url", "http://127.0.0.1:9", "--arms", "bare"]) == load.EXIT_ERROR
    assert "--arms must be adaptive with --url" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--tokens", "--waves", "--pairs"])
def test_no_work_is_refused_by_name(option: str, capsys) -> None:
    assert load.main([option, "0", "--model", "nothing"]) == load.EXIT_ERROR
    assert f"{option} must be at least 1, got 0" in capsys.readouterr().err


def test_a_kind_without_prompts_is_refused() -> None:
    with pytest.raises(InvalidOption, match="prompts must hold one of category code"):
        make_asks("code", [], 1, 1, speculate=True)


def _client(arm: Arm) -> EngineClient:
    assert isinstance(arm.client, EngineClient)
    return arm.client


class _Given:
    def __init__(self, arms) -> None:
        self.arms = arms

    async def __aenter__(self):
        return self.arms

    async def __aexit__(self, *_) -> None:
        return None
