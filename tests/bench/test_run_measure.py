"""Sides take turns, warm-ups are dropped, and a side that fails ends the run with what there is."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from itertools import groupby

import pytest
from fake_sides import FakeClient, broken, make_plan, make_sides

from gamaneh.bench.counters import Counters
from gamaneh.bench.counts import Counts
from gamaneh.bench.prompt_set import Prompt
from gamaneh.bench.result import Load
from gamaneh.bench.run import measure
from gamaneh.bench.run.measure import MOST_FAILURES, Bench
from gamaneh.bench.traffic import Ask, RequestFailed


def run(bench: Bench) -> Bench:
    asyncio.run(bench.run())
    return bench


def closed(level: float, requests: int, rounds: int = 1) -> list[Load]:
    return [Load("closed", level, requests, rounds)]


def test_one_at_a_time_sides_take_turns_by_request_and_the_order_is_swapped() -> None:
    asked: list[tuple[str, str]] = []
    run(Bench(make_sides(asked=asked), make_plan(loads=closed(1, 4, 2), warmups=0)))
    names = [name[0] for name, _ in asked]
    assert "".join(names) == "pssppssp" + "sppsspps"
    assert all(one[1] == other[1] for one, other in zip(asked[::2], asked[1::2], strict=True))


def test_several_at_once_take_turns_by_stretch() -> None:
    asked: list[tuple[str, str]] = []
    run(Bench(make_sides(asked=asked), make_plan(loads=closed(2, 16), warmups=0)))
    turns = [(name, len(list(group))) for name, group in groupby(name for name, _ in asked)]
    assert turns == [("plain", 8), ("speculative", 16), ("plain", 8)]


def test_warm_ups_are_asked_and_dropped() -> None:
    asked: list[tuple[str, str]] = []
    bench = run(Bench(make_sides(asked=asked), make_plan(loads=closed(1, 4), warmups=3)))
    assert [name for name, _ in asked[:6]] == ["plain"] * 3 + ["speculative"] * 3
    assert len(asked) == 6 + 8
    assert len(bench.measured[0].records("plain")) == 4


def test_progress_ends_at_its_total() -> None:
    ticks: list[tuple[int, int]] = []
    plan = make_plan(loads=[*closed(1, 3, 2), *closed(2, 4)], warmups=2)
    run(Bench(make_sides(), plan, lambda done, total: ticks.append((done, total))))
    assert ticks[-1][0] == ticks[-1][1] == 2 * (2 + 6 + 2 + 4)


def test_pairs_are_answers_to_the_same_request() -> None:
    bench = run(Bench(make_sides(), make_plan(loads=closed(2, 8, 2))))
    pairs = list(bench.measured[0].pairs())
    assert len(pairs) == 16
    assert all(plain.prompt == speculative.prompt and plain.key == speculative.key for plain, speculative in pairs)


def test_a_failed_request_is_noted_and_the_others_go_on() -> None:
    def say(ask: Ask) -> str:
        if ask.text.endswith("2"):
            raise RequestFailed("too long")
        return "fine"

    bench = run(Bench(make_sides(speculative=FakeClient("speculative", say)), make_plan(loads=closed(1, 4))))
    errors = [record.answer.error for record in bench.measured[0].records("speculative")]
    assert sorted(errors, key=str) == [None, None, None, "too long"]
    assert len(list(bench.measured[0].pairs())) == 3
    assert bench.stopped is None


def test_a_side_that_is_dead_ends_the_run() -> None:
    plan = make_plan(loads=[*closed(1, 20), *closed(2, 20)])
    bench = run(Bench(make_sides(plain=FakeClient("plain", broken)), plan))
    assert bench.stopped == f"{MOST_FAILURES} requests in a row failed on the plain side, the last one with: it broke"
    assert len(bench.measured) == 1
    assert len(bench.measured[0].records("plain")) == MOST_FAILURES


def test_what_was_measured_is_kept_after_each_load() -> None:
    kept: list[int] = []
    plan = make_plan(loads=[*closed(1, 2), *closed(2, 2)])
    run(Bench(make_sides(), plan, keep=lambda bench: kept.append(len(bench.measured))))
    assert kept == [1, 2]


def test_arrivals_by_the_clock_are_one_turn_of_the_whole_round() -> None:
    asked: list[tuple[str, str]] = []
    run(Bench(make_sides(asked=asked), make_plan(loads=[Load("constant", 1e4, 6, 1)], warmups=0)))
    assert [name for name, _ in asked] == ["plain"] * 6 + ["speculative"] * 6


@pytest.mark.parametrize(("saturated", "loads"), [(True, 1), (False, 3)])
def test_a_sweep_ends_when_neither_side_keeps_up(saturated: bool, loads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "is_saturated", lambda stays: saturated)
    plan = make_plan(loads=[Load("constant", 1e4 * at, 4, 1) for at in (1, 2, 3)], sweep=True, warmups=0)
    assert len(run(Bench(make_sides(), plan)).measured) == loads


def test_counters_are_read_around_each_turn() -> None:
    readings = iter(range(100))

    async def read() -> Counters:
        number = next(readings)
        return Counters(Counts(3 * number, drafts=number), float(number), None, None, {})

    sides = make_sides()
    sides = replace(sides, plain=replace(sides.plain, counters=read))
    bench = run(Bench(sides, make_plan(loads=closed(1, 3), warmups=0)))
    plain, speculative = (bench.measured[0].stretches[name] for name in ("plain", "speculative"))
    assert [(turn.counts.accepted, turn.counts.drafts, turn.cpu_seconds) for turn in plain] == [(3, 1, 1.0)] * 3
    assert [(turn.counts, turn.cpu_seconds) for turn in speculative] == [(None, None)] * 3


def test_an_answer_without_a_token_is_not_whole() -> None:
    bench = run(Bench(make_sides(plain=FakeClient("plain", lambda ask: "")), make_plan(loads=closed(1, 2))))
    assert not any(record.whole for record in bench.measured[0].records("plain"))
    assert bench.measured[0].stays("speculative")


def test_prompts_may_be_fewer_than_requests() -> None:
    plan = make_plan(prompts=[Prompt("only", "chat", "en", "?")], loads=closed(1, 3))
    assert len(list(run(Bench(make_sides(), plan)).measured[0].pairs())) == 3


def test_no_round_of_a_side_shares_its_salt() -> None:
    plain, speculative = FakeClient("plain"), FakeClient("speculative")
    plan = make_plan(loads=[*closed(1, 3, 2), *closed(1, 3)], warmups=1)
    run(Bench(make_sides(plain, speculative), plan))
    salts = [*plain.salts, *speculative.salts]
    assert sorted(Counter(salts).values()) == sorted(2 * [1, 3, 3, 1, 3])
    again = FakeClient("plain")
    run(Bench(make_sides(again), plan))
    assert not set(again.salts) & set(salts)
