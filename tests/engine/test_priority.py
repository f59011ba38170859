"""Priorities: who is admitted first, who has to make room, and that it changes no token."""

from __future__ import annotations

from conftest import drain

from gamaneh.core import Request
from gamaneh.engine.engine import Engine
from gamaneh.options import EngineOptions, SamplingParams
from gamaneh.testing import ByteTokenizer, ScriptedRunner, hashed, scripted_engine

VOCAB = 260


def engine_for(max_batch: int, num_blocks: int = 64) -> Engine:
    runner = ScriptedRunner(hashed(VOCAB), VOCAB, num_blocks=num_blocks)
    return scripted_engine(runner, ByteTokenizer(), options=EngineOptions(max_batch=max_batch, step_tokens=64))


def finishing_order(engine: Engine) -> list[str]:
    return list(dict.fromkeys(output.request_id for output in _outputs(engine) if output.finish_reason))


def _outputs(engine: Engine):
    while engine.has_work:
        yield from engine.step()
        engine.check_integrity()


def test_larger_priorities_go_first_and_equal_ones_in_the_order_of_arrival() -> None:
    engine = engine_for(max_batch=1)
    for name, priority in [("a", 0), ("b", 1), ("c", 0), ("d", 1), ("e", -1)]:
        engine.add(Request([1, 2, 3], SamplingParams(max_tokens=2), id=name, priority=priority))
    assert finishing_order(engine) == ["b", "d", "a", "c", "e"]


def test_the_lowest_priority_makes_room_however_old_it_is() -> None:
    engine = engine_for(max_batch=2, num_blocks=10)
    params = SamplingParams(max_tokens=25, ignore_eos=True)
    engine.add(Request([1, 2, 3], params, id="low", priority=-1))
    engine.add(Request([4, 5, 6], params, id="high"))
    preempted: set[str] = set()
    order: list[str] = []
    while engine.has_work:
        order += [output.request_id for output in engine.step() if output.finish_reason]
        preempted |= {sequence.request_id for sequence in engine.scheduler.preempted}
    assert (preempted, order) == ({"low"}, ["high", "low"])


def test_priorities_change_no_token() -> None:
    answers = []
    for priorities in [(0, 0, 0), (-1, 5, 2)]:
        engine = engine_for(max_batch=2, num_blocks=12)
        for at, priority in enumerate(priorities):
            params = SamplingParams(max_tokens=25, ignore_eos=True, temperature=1.0, seed=at)
            engine.add(Request([at, 1, 2], params, id=f"r{at}", priority=priority))
        answers.append({name: answer.tokens for name, answer in drain(engine).items()})
    assert answers[0] == answers[1]
