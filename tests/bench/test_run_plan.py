"""Both sides get the same requests, and loads are as they were asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_sides import GREEDY, make_plan, prompts

from gamaneh.bench.result import Load, Price
from gamaneh.bench.run.plan import closed_loads, make_price, open_loads, replay_load
from gamaneh.errors import InvalidOption
from gamaneh.options import SamplingParams


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
    assert (load.level, plan.arrivals(load)) == (1.0, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0])


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
        (lambda: make_price(0.0, "EUR", "2026-01-01"), r"price must be a number above 0, got 0\.0"),
        (lambda: make_price(1.0, "EUR", None), "price_date must be the day of the price, as YYYY-MM-DD, got None"),
        (lambda: make_price(1.0, "EUR", "soon"), "price_date must be the day of the price"),
    ],
)
def test_what_cannot_be_measured_is_refused(make, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        make()


def test_a_price_has_a_date() -> None:
    assert make_price(1.5, "EUR", "2026-11-29") == Price(1.5, "EUR", "2026-11-29")


def test_requests_of_all_loads_and_rounds_are_counted() -> None:
    plan = make_plan(loads=[Load("closed", 1.0, 4, 2), Load("closed", 2.0, 6, 3)])
    assert plan.requests == 26
    assert replace(plan, prompts=prompts(5)).prompts_sha256 != plan.prompts_sha256
