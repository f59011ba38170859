"""Sides take turns, warm-ups are dropped, and a side that fails ends the run with what there is."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
from fake_sides import GREEDY, FakeClient, broken, make_plan, make_ways, prompts

from gamaneh.bench import measure
from gamaneh.bench.measure import (
    MOST_FAILURES,
    Bench,
    Traffic,
    arrivals,
    closed_loads,
    open_loads,
    replay_load,
)
from gamaneh.bench.prompt_set import Prompt
from gamaneh.bench.record import Ask, Counters, Counts, Delivery, Record, RequestFailed
from gamaneh.bench.result import Load
from gamaneh.bench.stats import stays
from gamaneh.bench.time_limit import TimeLimit
from gamaneh.errors import InvalidOption
from gamaneh.options import SamplingParams


def run(bench: Bench) -> Bench:
    asyncio.run(bench.run())
    return bench


def closed(level: float, requests: int, rounds: int = 1) -> list[Load]:
    return [Load("closed", level, requests, rounds)]


def test_one_at_a_time_sides_take_turns_by_request_and_the_order_is_swapped() -> None:
    asked: list[tuple[str, str]] = []
    run(Bench(make_ways(asked=asked), make_plan(loads=closed(1, 4, 2), warmups=0)))
    names = [name[0] for name, _ in asked]
    assert "".join(names) == "pssppssp" + "sppsspps"
    assert all(one[1] == other[1] for one, other in zip(asked[::2], asked[1::2], strict=True))


def test_several_at_once_take_turns_by_stretch() -> None:
    asked: list[tuple[str, str]] = []
    run(Bench(make_ways(asked=asked), make_plan(loads=closed(2, 16), warmups=0)))
    turns = [(name, len(list(group))) for name, group in groupby(name for name, _ in asked)]
    assert turns == [("plain", 8), ("speculative", 16), ("plain", 8)]


def test_warm_ups_are_asked_and_dropped() -> None:
    asked: list[tuple[str, str]] = []
    bench = run(Bench(make_ways(asked=asked), make_plan(loads=closed(1, 4), warmups=3)))
    assert [name for name, _ in asked[:6]] == ["plain"] * 3 + ["speculative"] * 3
    assert len(asked) == 6 + 8
    assert len(bench.measured[0].records("plain")) == 4


def test_progress_ends_at_its_total() -> None:
    ticks: list[tuple[int, int]] = []
    plan = make_plan(loads=[*closed(1, 3, 2), *closed(2, 4)], warmups=2)
    run(Bench(make_ways(), plan, lambda done, total: ticks.append((done, total))))
    assert ticks[-1][0] == ticks[-1][1] == 2 * (2 + 6 + 2 + 4)


def test_pairs_are_answers_to_the_same_request() -> None:
    bench = run(Bench(make_ways(), make_plan(loads=closed(2, 8, 2))))
    pairs = list(bench.measured[0].pairs())
    assert len(pairs) == 16
    assert all(plain.prompt == speculative.prompt and plain.key == speculative.key for plain, speculative in pairs)


def test_a_failed_request_is_noted_and_the_others_go_on() -> None:
    def say(ask: Ask) -> str:
        if ask.text.endswith("2"):
            raise RequestFailed("too long")
        return "fine"

    bench = run(Bench(make_ways(speculative=FakeClient("speculative", say)), make_plan(loads=closed(1, 4))))
    errors = [record.error for record in bench.measured[0].records("speculative")]
    assert sorted(errors, key=str) == [None, None, None, "too long"]
    assert len(list(bench.measured[0].pairs())) == 3
    assert bench.stopped is None


def test_a_side_that_is_dead_ends_the_run() -> None:
    plan = make_plan(loads=[*closed(1, 20), *closed(2, 20)])
    bench = run(Bench(make_ways(plain=FakeClient("plain", broken)), plan))
    assert bench.stopped == f"{MOST_FAILURES} requests in a row failed on the plain side, the last one with: it broke"
    assert len(bench.measured) == 1
    assert len(bench.measured[0].records("plain")) == MOST_FAILURES


def test_what_was_measured_is_kept_after_each_load() -> None:
    kept: list[int] = []
    plan = make_plan(loads=[*closed(1, 2), *closed(2, 2)])
    run(Bench(make_ways(), plan, keep=lambda bench: kept.append(len(bench.measured))))
    assert kept == [1, 2]


def test_arrivals_by_the_clock_are_one_turn_of_the_whole_round() -> None:
    asked: list[tuple[str, str]] = []
    run(Bench(make_ways(asked=asked), make_plan(loads=[Load("constant", 1e4, 6, 1)], warmups=0)))
    assert [name for name, _ in asked] == ["plain"] * 6 + ["speculative"] * 6


@pytest.mark.parametrize(("saturated", "loads"), [(True, 1), (False, 3)])
def test_a_sweep_ends_when_neither_side_keeps_up(saturated: bool, loads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "is_saturated", lambda stays: saturated)
    plan = make_plan(loads=[Load("constant", 1e4 * at, 4, 1) for at in (1, 2, 3)], sweep=True, warmups=0)
    assert len(run(Bench(make_ways(), plan)).measured) == loads


def test_counters_are_read_around_each_turn() -> None:
    readings = iter(range(100))

    async def read() -> Counters:
        number = next(readings)
        return Counters(Counts(3 * number, drafts=number), float(number), None, None, {})

    ways = make_ways()
    ways = ways._replace(plain=replace(ways.plain, counters=read))
    bench = run(Bench(ways, make_plan(loads=closed(1, 3), warmups=0)))
    plain, speculative = (bench.measured[0].stretches[name] for name in ("plain", "speculative"))
    assert [(turn.counts.accepted, turn.counts.drafts, turn.cpu_seconds) for turn in plain] == [(3, 1, 1.0)] * 3
    assert [(turn.counts, turn.cpu_seconds) for turn in speculative] == [(None, None)] * 3


def test_an_answer_without_a_token_is_not_whole() -> None:
    bench = run(Bench(make_ways(plain=FakeClient("plain", lambda ask: "")), make_plan(loads=closed(1, 2))))
    assert not any(record.whole for record in bench.measured[0].records("plain"))
    assert stays(bench.measured[0].records("speculative"))


def test_prompts_may_be_fewer_than_requests() -> None:
    plan = make_plan(prompts=[Prompt("only", "chat", "en", "?")], loads=closed(1, 3))
    assert len(list(run(Bench(make_ways(), plan)).measured[0].pairs())) == 3


def test_no_round_of_a_side_shares_its_salt() -> None:
    plain, speculative = FakeClient("plain"), FakeClient("speculative")
    plan = make_plan(loads=[*closed(1, 3, 2), *closed(1, 3)], warmups=1)
    run(Bench(make_ways(plain, speculative), plan))
    salts = [*plain.salts, *speculative.salts]
    assert sorted(Counter(salts).values()) == sorted(2 * [1, 3, 3, 1, 3])
    again = FakeClient("plain")
    run(Bench(make_ways(again), plan))
    assert not set(again.salts) & set(salts)


class Echo:
    """Delivers the prompt word by word, and remembers how many were answered at once."""

    def __init__(self) -> None:
        self.now = self.most = 0

    async def stream(self, ask: Ask) -> AsyncGenerator[Delivery]:
        self.now += 1
        self.most = max(self.most, self.now)
        for word in ask.text.split():
            await asyncio.sleep(0)
            yield Delivery(word, 1)
        self.now -= 1


def test_as_many_requests_as_wanted_run_at_once_and_each_answer_keeps_its_number() -> None:
    client, traffic = Echo(), Traffic()
    asks = [Ask(f"question number {at}", SamplingParams()) for at in range(11)]
    asyncio.run(traffic.closed_loop(client, asks, 4))
    assert client.most == 4
    assert {at: record.text for at, record in traffic.records.items()} == {
        at: f"questionnumber{at}" for at in range(11)
    }
    assert sum(record.tokens for record in traffic.records.values()) == 33


def test_times_are_taken_between_deliveries_with_tokens() -> None:
    record = Record(sent=1.0)
    for tokens, now in [(2, 3.0), (0, 4.0), (1, 6.0), (3, 7.0)]:
        record.take(Delivery("x", tokens), now)
    assert (record.ttft, record.gaps, record.e2e, record.tokens) == (2.0, [3.0, 1.0], 6.0, 6)


def test_any_number_of_ways_takes_turns() -> None:
    asked: list[tuple[str, str]] = []
    plain, speculative = make_ways(asked=asked)
    third = replace(plain, name="third", client=FakeClient("third", asked=asked))
    bench = run(Bench([plain, speculative, third], make_plan(loads=closed(1, 2), warmups=0)))
    assert [name for name, _ in asked] == ["plain", "speculative", "third", "third", "speculative", "plain"]
    assert {name: len(turns) for name, turns in bench.measured[0].stretches.items()} == {
        "plain": 2,
        "speculative": 2,
        "third": 2,
    }


def test_a_turn_that_is_broken_off_is_kept_as_far_as_it_came() -> None:
    def say(ask: Ask) -> str:
        if ask.text.endswith("3"):
            raise KeyboardInterrupt
        return "one two"

    plan = make_plan(loads=[Load("constant", 1e3, 4, 1)], warmups=0, prompts=prompts(4))
    bench = Bench(make_ways(speculative=FakeClient("speculative", say)), plan)
    with pytest.raises(KeyboardInterrupt):
        run(bench)
    plain, speculative = (bench.measured[0].records(name) for name in ("plain", "speculative"))
    assert len(plain) == 4
    assert 0 < len(speculative) < 4
    assert all(record.asked.id != "p3" for record in speculative)


def test_an_empty_answer_is_a_failure_by_its_kind() -> None:
    bench = run(Bench(make_ways(plain=FakeClient("plain", lambda ask: "")), make_plan(loads=closed(1, 2))))
    assert {record.reason for record in bench.measured[0].records("plain")} == {"empty"}


def test_the_order_is_shuffled_alike_each_time_and_prompts_come_round() -> None:
    plan, load = make_plan(prompts=prompts(10)), Load("closed", 1.0, 25, 1)
    order = [prompt.id for prompt in plan.order(load)]
    assert order == [prompt.id for prompt in plan.order(load)]
    assert order[:10] != [prompt.id for prompt in plan.prompts]
    assert sorted(order[:10]) == sorted(prompt.id for prompt in plan.prompts)
    assert order[10:20] == order[:10]


def test_another_seed_gives_another_order() -> None:
    load = Load("closed", 1.0, 10, 1)
    one, other = (make_plan(prompts=prompts(10), seed=seed).order(load) for seed in (1, 2))
    assert one != other


def test_a_recording_keeps_its_order() -> None:
    plan = make_plan(prompts=prompts(6), recorded=[0.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    load = replay_load(plan.recorded, 1)
    assert [prompt.id for prompt in plan.order(load)] == [prompt.id for prompt in plan.prompts]
    assert (load.level, arrivals(load, 0, plan.recorded)) == (1.0, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0])


def test_each_request_has_a_seed_of_its_own_and_the_same_on_both_sides() -> None:
    plan = make_plan(params=SamplingParams(temperature=1.0, seed=7))
    plain, speculative = (plan.ask(plan.prompts[0], 3, speculate=speculate, salt="") for speculate in (False, True))
    assert plain.params.seed == speculative.params.seed == 10
    assert plan.ask(plan.prompts[0], 4, speculate=True, salt="").params.seed == 11


def test_without_a_seed_sampled_outputs_cannot_be_compared() -> None:
    assert not make_plan(params=SamplingParams(temperature=1.0)).comparable
    assert make_plan(params=SamplingParams(temperature=1.0, seed=0)).comparable
    assert make_plan(params=GREEDY).comparable


def test_a_closed_loop_has_requests_for_everybody() -> None:
    assert [load.requests for load in closed_loads([1, 4, 16], 8, 2)] == [8, 8, 16]


def test_a_sweep_doubles_the_last_rate() -> None:
    loads = open_loads("poisson", [0.5, 2.0], 10, 1, 1.0, sweep=True)
    assert [load.level for load in loads[:4]] == [0.5, 2.0, 4.0, 8.0]
    assert len(loads) == 12


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: closed_loads([0], 4, 1), "concurrency must be a number above 0, got 0"),
        (lambda: open_loads("poisson", [-1.0], 4, 1, 1.0, sweep=False), "rate must be a number above 0, got -1"),
        (lambda: open_loads("gamma", [1.0], 4, 1, 0.0, sweep=False), "burstiness must be a number above 0, got 0"),
        (
            lambda: open_loads("poisson", [float("inf")], 4, 1, 1.0, sweep=False),
            "rate must be a number above 0, got inf",
        ),
        (lambda: closed_loads([1], 4, 0), "rounds must be at least 1, got 0"),
        (lambda: replay_load([1.0], 1), "trace must have prompts with the key at, two or more, got 1"),
        (lambda: make_plan(prompts=[]), "prompts must be at least one, got 0"),
        (lambda: make_plan(warmups=-1), "warmups must be at least 0, got -1"),
    ],
)
def test_what_cannot_be_measured_is_refused(make, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        make()


def test_requests_of_all_loads_and_rounds_are_counted() -> None:
    plan = make_plan(loads=[Load("closed", 1.0, 4, 2), Load("closed", 2.0, 6, 3)])
    assert plan.requests == 26
    assert replace(plan, prompts=prompts(5)).prompts_sha256 != plan.prompts_sha256


MANY = 20_000


def gaps(pattern: str, rate: float, burstiness: float = 1.0, seed: int = 3) -> np.ndarray:
    return np.diff(arrivals(Load(pattern, rate, MANY, 1, burstiness), seed))


def test_constant_arrivals_are_evenly_spaced() -> None:
    assert arrivals(Load("constant", 4.0, 4, 1), seed=0) == pytest.approx([0.0, 0.25, 0.5, 0.75])


@pytest.mark.parametrize(("pattern", "burstiness"), [("poisson", 1.0), ("gamma", 1.0), ("gamma", 0.25), ("gamma", 4.0)])
def test_gaps_have_the_mean_and_the_variation_of_their_law(pattern: str, burstiness: float) -> None:
    drawn = gaps(pattern, 5.0, burstiness)
    assert drawn.mean() == pytest.approx(1 / 5, rel=0.05)
    assert drawn.std() / drawn.mean() == pytest.approx(burstiness**-0.5, rel=0.05)


def test_poisson_gaps_are_exponential() -> None:
    share = (gaps("poisson", 1.0) > 1.0).mean()
    assert share == pytest.approx(np.exp(-1), abs=0.01)


def test_both_sides_get_the_same_arrivals() -> None:
    load = Load("poisson", 2.0, 50, 1)
    assert arrivals(load, seed=1) == arrivals(load, seed=1) != arrivals(load, seed=2)


def test_a_recording_is_replayed_from_its_first_request_on() -> None:
    recorded = [10.0, 10.5, 13.0]
    assert arrivals(Load("replay", 1.0, 3, 1), seed=0, recorded=recorded) == [0.0, 0.5, 3.0]
    assert replay_load(recorded, 1).level == pytest.approx(2 / 3)


def test_a_recording_of_requests_that_came_at_once_has_no_rate() -> None:
    with pytest.raises(InvalidOption, match=r"rate must be a number above 0, got 0\.0"):
        replay_load([4.0, 4.0], 1)


@pytest.mark.parametrize("recorded", [[1.0, 2.0], [3.0, 1.0, 2.0]])
def test_a_recording_that_does_not_fit_is_refused(recorded: list[float]) -> None:
    with pytest.raises(InvalidOption, match="trace must hold one ascending time for each request"):
        arrivals(Load("replay", 1.0, 3, 1), seed=0, recorded=recorded)


def test_a_closed_loop_has_no_arrivals() -> None:
    with pytest.raises(InvalidOption, match="got 'closed'"):
        arrivals(Load("closed", 1.0, 3, 1), seed=0)


def test_no_turn_begins_after_the_time_is_up_and_what_was_measured_stays() -> None:
    now = [0.0]

    def say(ask: Ask) -> str:
        now[0] += 10.0
        return "one two"

    ways = make_ways(FakeClient("plain", say), FakeClient("speculative", say))
    limit = TimeLimit(1.0, lambda: now[0])
    bench = run(Bench(ways, make_plan(loads=closed(1, 8), warmups=0), limit=limit))
    assert (bench.stopped, len(list(bench.measured[0].pairs()))) == ("out of time", 3)


def test_loads_share_the_time_so_that_each_has_figures() -> None:
    now = [0.0]

    def say(ask: Ask) -> str:
        now[0] += 10.0
        return "one two"

    ways = make_ways(FakeClient("plain", say), FakeClient("speculative", say))
    limit = TimeLimit(2.0, lambda: now[0])
    bench = run(Bench(ways, make_plan(loads=[*closed(1, 8), *closed(1, 8)], warmups=0), limit=limit))
    assert [len(list(load.pairs())) for load in bench.measured] == [3, 3]
