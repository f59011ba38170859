import pytest

from gamaneh.bench.advise.advise_checks import CacheState, check_caches, check_fallback
from gamaneh.bench.advise.recording import Answered
from gamaneh.bench.advise.validate import fastest, salted_units, validate
from gamaneh.bench.advise.workload import WorkloadRequest
from gamaneh.bench.stats import ratio_of_sums
from gamaneh.bench.time_limit import TimeLimit
from gamaneh.engine.llm import LLM
from gamaneh.errors import InvalidRequest
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.testing.tiny import tiny_model

PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)


def requests(count: int) -> list[WorkloadRequest]:
    return [
        WorkloadRequest(id=str(at), category="c", language="en", prompt=tuple(range(at, at + 9)), max_tokens=12)
        for at in range(count)
    ]


def tiny(proposer: str = "none", batch: int = 1, **options: int) -> LLM:
    k = None if proposer == "none" else 3
    speculation = SpeculationOptions(proposer=proposer, draft_length=k)
    return LLM(tiny_model(), speculation=speculation, options=EngineOptions(max_batch=batch, **options))


def three(batch: int) -> dict[str, LLM]:
    return {"plain": tiny(batch=batch), "fixed": tiny("lookup", batch), "served": tiny("auto", batch)}


@pytest.mark.parametrize("batch", [1, 2])
def test_all_ways_answer_all_units(batch: int) -> None:
    outcome = validate(three(batch), requests(3), PARAMS, batch, predicted=1.0, limit=TimeLimit())
    units = 3 if batch == 1 else 4
    size = 1 if batch == 1 else 4
    assert (outcome.units, outcome.differing) == (units, 0)
    asked = outcome.passes * units * size
    assert outcome.answers == 2 * asked
    assert {name: times.e2e.count for name, times in outcome.latencies.items()} == dict.fromkeys(
        ("plain", "fixed", "served"), asked
    )
    assert outcome.measured.low <= outcome.measured.value <= outcome.measured.high


def test_a_request_that_cannot_be_answered_ends_it() -> None:
    ways = three(1)
    too_long = WorkloadRequest(id="x", category="c", language="en", prompt=(1,) * 600, max_tokens=4)
    with pytest.raises(InvalidRequest, match="prompt must hold at most"):
        validate(ways, [too_long], PARAMS, 1, predicted=1.0, limit=TimeLimit())


def test_each_pass_through_the_requests_has_its_salt() -> None:
    units = salted_units(requests(3), 2)
    salts = [one.salt for unit in units for one in unit]
    assert salts == [f"0.{at // 3}" for at in range(16)]
    again = [one.salt for unit in salted_units(requests(3), 2, 1) for one in unit]
    assert not set(salts) & set(again)


def test_what_does_not_agree_with_the_prediction_is_run_once_more() -> None:
    outcome = validate(three(1), requests(2), PARAMS, 1, predicted=1000.0, limit=TimeLimit())
    assert (outcome.passes, outcome.units, outcome.agrees) == (2, 2, False)
    assert outcome.latencies["plain"].e2e.count == 4


def test_of_several_passes_the_fastest_run_of_each_unit_counts() -> None:
    assert fastest([[1.0, 9.0, 2.0], [3.0, 2.0, 2.5]]) == [1.0, 2.0, 2.0]


def test_the_ratio_is_that_of_the_sums() -> None:
    found = ratio_of_sums([10.0, 1.0], [5.0, 1.0])
    assert found.value == pytest.approx(11 / 6)
    assert (found.low, found.high) == (1.0, 2.0)


def test_equal_pairs_leave_no_doubt() -> None:
    found = ratio_of_sums([2.0] * 5, [1.0] * 5)
    assert (found.low, found.value, found.high) == (2.0, 2.0, 2.0)


def test_intervals_hold_the_true_ratio_as_often_as_they_say() -> None:
    import numpy as np

    draws = np.random.default_rng(3)
    inside = 0
    for _ in range(200):
        plain = draws.lognormal(0.0, 0.3, 30) * 1.5
        found = ratio_of_sums(list(plain), list(draws.lognormal(0.0, 0.3, 30)))
        inside += found.low <= 1.5 <= found.high
    assert 180 <= inside <= 198


def test_an_engine_survives_a_proposer_that_always_fails() -> None:
    llm = tiny()
    one = requests(1)[0]
    plain = Answered(one, llm.generate([one.prompt], PARAMS)[0])
    found = check_fallback(llm, plain, PARAMS)
    assert found.works
    assert found.failures > 0


def test_an_answer_that_changed_is_no_fallback() -> None:
    llm = tiny()
    one, other = requests(2)
    wrong = Answered(one, llm.generate([other.prompt], PARAMS)[0])
    assert not check_fallback(llm, wrong, PARAMS).works


def test_blocks_that_are_held_are_told() -> None:
    llm = tiny()
    assert check_caches([llm]) == CacheState(llm.engine.backend.kv.pool.num_blocks, 0)
    llm.engine.backend.kv.admit("left", [1, 2, 3], 3)
    llm.engine.backend.kv.reserve("left", 3)
    assert check_caches([llm]).leaked == 1
    assert not check_caches([llm]).clean
