"""What the engine tells about each request and each step."""

from __future__ import annotations

import itertools
import time

import pytest
from conftest import drain

from gamaneh.core import BatchReport, FinishReason, Origin, Request
from gamaneh.engine.engine import Engine
from gamaneh.metrics.timeline import RequestTimeline
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.testing import ByteTokenizer, ScriptedProposer, ScriptedRunner, hashed, scripted_engine

VOCAB = 260
PROMPT = list(range(40, 60))
PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)


class Log:
    """Everything that an engine told."""

    def __init__(self, engine: Engine) -> None:
        self.timelines: dict[str, RequestTimeline] = {}
        self.batches: list[BatchReport] = []
        engine.request_observers.append(lambda timeline: self.timelines.update({timeline.request_id: timeline}))
        engine.batch_observers.append(self.batches.append)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the clock finds it one second later."""
    monkeypatch.setattr(time, "perf_counter", map(float, itertools.count()).__next__)


def engine_for(k: int = 0, *, num_blocks: int = 64, step_tokens: int = 64) -> Engine:
    runner = ScriptedRunner(hashed(VOCAB), VOCAB, num_blocks=num_blocks)
    proposer = ScriptedProposer(hashed(VOCAB), VOCAB)
    speculation = SpeculationOptions(proposer="scripted" if k else "none", draft_length=k)
    options = EngineOptions(max_batch=4, step_tokens=step_tokens)
    return scripted_engine(runner, ByteTokenizer(), proposer=proposer, speculation=speculation, options=options)


def run_one(engine: Engine, **more: float) -> tuple[Log, RequestTimeline]:
    log = Log(engine)
    engine.add(Request(PROMPT, PARAMS, id="r", **more))
    drain(engine)
    return log, log.timelines["r"]


def test_marks_are_in_order() -> None:
    _, timeline = run_one(engine_for(3))
    times = [timeline.arrived, timeline.scheduled, *timeline.token_times, timeline.finished]
    assert times == sorted(times)
    assert timeline.arrived < timeline.scheduled < timeline.first_token < timeline.finished


def test_every_emitted_token_has_a_time() -> None:
    _, timeline = run_one(engine_for(3))
    assert (timeline.prompt_tokens, timeline.output_tokens, timeline.proposer) == (20, 12, "scripted")
    assert timeline.finish_reason is FinishReason.LENGTH


def test_tokens_of_one_round_share_their_time() -> None:
    _, timeline = run_one(engine_for(3))
    deliveries = [len(list(group)) for _, group in itertools.groupby(timeline.token_times)]
    assert deliveries == [1, 4, 4, 3]


def test_the_caller_may_say_when_the_request_came_in() -> None:
    _, timeline = run_one(engine_for(), arrived=-5.0)
    assert timeline.arrived == -5.0


def test_an_aborted_request_ends_once() -> None:
    engine = engine_for()
    log = Log(engine)
    engine.add(Request(PROMPT, PARAMS, id="r"))
    engine.step()
    engine.abort("r")
    assert (log.timelines["r"].finish_reason, log.timelines["r"].output_tokens) == (FinishReason.ABORT, 1)


def test_a_prefix_in_the_cache_is_counted() -> None:
    engine = engine_for()
    _, cold = run_one(engine)
    _, warm = run_one(engine)
    assert (cold.cached_tokens, warm.cached_tokens) == (0, 16)


def test_preemptions_are_marked() -> None:
    engine = engine_for(num_blocks=14)
    log = Log(engine)
    for name in "ab":
        engine.add(Request(PROMPT, PARAMS, id=name))
    drain(engine)
    assert sum(len(timeline.preempted) for timeline in log.timelines.values()) == 1
    assert sum(report.preempted for report in log.batches) == 1


def test_steps_add_up_to_the_requests() -> None:
    log, timeline = run_one(engine_for(3))
    assert sum(sum(report.origins.values()) for report in log.batches) == timeline.output_tokens
    assert sum(report.prompt_rows for report in log.batches) == timeline.prompt_tokens
    assert [report.rows for report in log.batches] == [20, 4, 4, 3]
    assert log.batches[1].origins == {Origin.ACCEPTED: 3, Origin.BONUS: 1}


def test_a_step_takes_longer_than_its_parts() -> None:
    log, _ = run_one(engine_for(3))
    for report in log.batches:
        assert report.step_seconds > report.verify_seconds + sum(report.draft_seconds.values())


def test_an_empty_step_tells_nothing() -> None:
    engine = engine_for()
    log = Log(engine)
    engine.step()
    assert log.batches == []
