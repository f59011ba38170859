import itertools
import random

import pytest

from gamaneh.bench.advise.costs import Costs, Surface
from gamaneh.bench.advise.predict import Predictor
from gamaneh.bench.advise.simulate import Alone, SimulatedJob, make_units, simulate
from gamaneh.bench.advise.trace import PLAIN_ROUND, Round, Trace

STEP = Surface({(1, 0): (1.0,), (1, 8): (1.0,)})


def drawn(acceptance: float, k: int, count: int = 30, tokens: int = 200, **more: object) -> list[Trace]:
    """Traces whose candidates are accepted with the same chance each."""
    draws = random.Random(1)
    traces = []
    for name in range(count):
        rounds: list[Round] = []
        while sum(one.emitted for one in rounds) < tokens:
            accepted = next((at for at in range(k) if draws.random() >= acceptance), k)
            rounds.append(Round(k, k, accepted, accepted + 1))
        values = {"id": str(name), "category": "chat", "language": "en", "prompt_tokens": 10, "largest": k, **more}
        traces.append(Trace(rounds=tuple(rounds), **values))  # type: ignore[arg-type]
    return traces


def draft(per_candidate: float, k: int) -> Surface:
    return Surface({(1, 0): (0.0,), (1, k): (per_candidate * k,)})


@pytest.mark.parametrize(("acceptance", "cost", "k"), [(0.8, 0.1, 6), (0.6, 0.05, 4), (0.9, 0.1, 3), (0.5, 0.2, 1)])
def test_the_speedup_is_that_of_the_theory(acceptance: float, cost: float, k: int) -> None:
    """Leviathan et al. 2023, theorem 3.8: (1 - a^(k + 1)) / ((1 - a) (1 + c k))."""
    predictor = Predictor(drawn(acceptance, 8), Costs(STEP, draft(cost, 8)))
    expected = (1 - acceptance ** (k + 1)) / ((1 - acceptance) * (1 + cost * k))
    assert predictor.speedup(1, k) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(("acceptance", "cost", "best"), [(0.5, 0.2, 1), (0.6, 0.05, 4), (0.8, 0.2, 4)])
def test_the_best_length_is_that_of_the_theory(acceptance: float, cost: float, best: int) -> None:
    assert abs(Predictor(drawn(acceptance, 8), Costs(STEP, draft(cost, 8))).best_k(1) - best) <= 1


def test_bad_drafts_are_predicted_to_be_slower() -> None:
    found = Predictor(drawn(0.05, 4), Costs(STEP, draft(0.5, 4))).predict(1)
    assert found.speedup.high < 1.0
    assert found.tokens_per_round < found.break_even


def test_the_interval_holds_the_value_and_the_spread_of_prompts() -> None:
    mixed = [*drawn(0.9, 4, count=5), *(trace for trace in drawn(0.1, 4, count=10)[5:])]
    found = Predictor(mixed, Costs(STEP)).predict(1, 4).speedup
    assert found.low < found.value < found.high
    assert found.high / found.low > 1.2


def test_the_interval_holds_the_spread_of_timings() -> None:
    noisy = Surface({(1, 0): (1.0, 1.0, 1.0), (1, 4): (1.0, 1.5, 2.0)})
    same = drawn(1.0, 4)
    exact = Predictor(same, Costs(STEP)).predict(1, 4).speedup
    found = Predictor(same, Costs(noisy)).predict(1, 4).speedup
    assert found.high / found.low > 1.5 * exact.high / exact.low


def test_reading_prompts_takes_its_share() -> None:
    quick = Predictor(drawn(0.8, 4), Costs(STEP)).speedup(1, 4)
    slow = Predictor(drawn(0.8, 4, prefill_seconds=200.0), Costs(STEP)).speedup(1, 4)
    assert slow == pytest.approx(2 / (1 + 1 / quick), rel=0.05)


def test_a_proposer_that_reads_the_prompt_first_pays_for_it() -> None:
    traces = drawn(0.8, 4)
    free, reading = (Predictor(traces, Costs(STEP, draft(0.0, 4), seconds)) for seconds in (0.0, 5.0))
    assert reading.speedup(1, 4) < free.speedup(1, 4)


def test_more_requests_at_once_leave_less_to_gain_where_rows_cost() -> None:
    step = Surface({(batch, rows): (1.0 + (batch + rows) / 16,) for batch in (1, 4) for rows in (0, 4, 16)})
    predictor = Predictor(drawn(0.6, 4), Costs(step))
    assert predictor.speedup(4, 4) < predictor.speedup(1, 4)


def test_short_answers_of_one_token_gain_nothing() -> None:
    empty = Trace(id="a", category="c", language="en", prompt_tokens=3, largest=4, rounds=(), prefill_seconds=1.0)
    found = Predictor([empty], Costs(STEP)).predict(1)
    assert (found.speedup.low, found.speedup.value, found.speedup.high) == (1.0, 1.0, 1.0)


def test_jobs_follow_one_another_through_the_places() -> None:
    jobs = [SimulatedJob(0.0, 0, [PLAIN_ROUND] * count) for count in (4, 2, 2)]
    assert simulate(jobs, 1, Costs(STEP)) == 8.0
    assert simulate(jobs, 2, Costs(STEP)) == pytest.approx(5.0, abs=1.0)


def test_a_round_costs_what_its_longest_draft_and_all_its_rows_cost() -> None:
    step = Surface({(2, 0): (1.0,), (2, 10): (2.0,)})
    drafts = Surface({(2, 0): (0.0,), (2, 10): (1.0,)})
    jobs = [SimulatedJob(0.0, 0, [Round(2, 2, 0, 1)]), SimulatedJob(0.0, 0, [Round(5, 5, 0, 1)])]
    assert simulate(jobs, 2, Costs(step, drafts)) == pytest.approx(1.7 + 0.5)


def test_jobs_that_are_counted_take_what_a_simulation_takes() -> None:
    costs = Costs(Surface({(1, 0): (1.0,), (1, 4): (1.5,)}), draft(0.2, 4), 0.1)
    jobs = [SimulatedJob(2.0 + at, 10 * at, trace.rounds[at:]) for at, trace in enumerate(drawn(0.7, 4, count=4))]
    assert Alone(jobs).seconds(costs) == pytest.approx([simulate([job], 1, costs) for job in jobs])


def test_prompts_are_read_beside_the_rounds_of_others() -> None:
    jobs = [SimulatedJob(3.0, 0, [PLAIN_ROUND] * 4), SimulatedJob(3.0, 0, [PLAIN_ROUND] * 4)]
    assert simulate(jobs, 2, Costs(STEP)) == pytest.approx(1.0 + 2.0 + 2.0 + 4.0)


def test_one_at_once_makes_single_units() -> None:
    assert make_units([1, 2, 3], 1) == [[1], [2], [3]]


@pytest.mark.parametrize("count", [1, 3, 12, 50])
def test_units_fill_the_batch_twice_and_leave_no_request_out(count: int) -> None:
    units = make_units(range(count), 4)
    assert {len(unit) for unit in units} == {8}
    assert set(itertools.chain(*units)) == set(range(count))
