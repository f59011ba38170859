"""The engine's thread: many callers, aborts, an orderly end, and a death that is told to everybody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from conftest import Answer

from gamaneh.core import FinishReason, Request
from gamaneh.engine.async_engine import AsyncEngine, RequestStream
from gamaneh.errors import EngineStopped, InvalidRequest
from gamaneh.options import SamplingParams, SpeculationOptions
from gamaneh.testing import ByteTokenizer, ScriptedProposer, ScriptedRunner, hashed, scripted_engine

VOCAB = 260
PROMPT = [1, 2, 3, 4, 5]
ENDLESS = SamplingParams(max_tokens=None, ignore_eos=True)


class GatedRunner(ScriptedRunner):
    """Every forward waits for `go`, so that a test decides what happens between two steps."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.go = threading.Semaphore(0)
        self.reached = threading.Semaphore(0)
        self.fault: Exception | None = None

    def forward(self, feeds, *, taps=(), num_layers=None):
        self.reached.release()
        assert self.go.acquire(timeout=10)
        if self.fault:
            raise self.fault
        return super().forward(feeds, taps=taps)


def speculating(runner: ScriptedRunner, script) -> Any:
    proposer = ScriptedProposer(script, VOCAB, accuracy=0.6)
    speculation = SpeculationOptions(proposer="scripted", draft_length=4)
    return scripted_engine(runner, ByteTokenizer(), proposer=proposer, speculation=speculation)


@contextmanager
def running(runner: ScriptedRunner | None = None) -> Iterator[AsyncEngine]:
    script = hashed(VOCAB)
    engine = AsyncEngine(speculating(runner or ScriptedRunner(script, VOCAB), script))
    engine.start()
    yield engine
    if isinstance(runner, GatedRunner):
        runner.go.release(1000)
    engine.stop()
    assert not engine.alive


async def collect(stream: RequestStream) -> Answer:
    answer = Answer()
    async for output in stream:
        answer.tokens += output.tokens
        answer.text += output.text
        answer.finish_reason = output.finish_reason or answer.finish_reason
    return answer


async def ask(engine: AsyncEngine, name: str, params: SamplingParams, prompt: list[int] = PROMPT) -> Answer:
    return await collect(await engine.submit(Request(prompt, params, id=name)))


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    async def bounded() -> Any:
        return await asyncio.wait_for(coroutine, 10)

    return asyncio.run(bounded())


def plain_answer(params: SamplingParams, prompt: list[int]) -> list[int]:
    engine = scripted_engine(ScriptedRunner(hashed(VOCAB), VOCAB), ByteTokenizer())
    engine.add(Request(prompt, params))
    tokens: list[int] = []
    while engine.has_work:
        tokens += [token for output in engine.step() for token in output.tokens]
    return tokens


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_many_at_once_get_what_each_would_get_alone(temperature: float) -> None:
    asked = {
        f"r{at}": ([at, *PROMPT], SamplingParams(temperature=temperature, seed=at, max_tokens=20 + at))
        for at in range(8)
    }

    async def all_of_them(engine: AsyncEngine) -> list[Answer]:
        return await asyncio.gather(*(ask(engine, name, params, prompt) for name, (prompt, params) in asked.items()))

    with running() as engine:
        answers = run(all_of_them(engine))
    assert [answer.tokens for answer in answers] == [plain_answer(params, prompt) for prompt, params in asked.values()]


def test_a_request_that_breaks_a_rule_is_refused_to_its_caller_alone() -> None:
    async def both(engine: AsyncEngine) -> Answer:
        good = asyncio.create_task(ask(engine, "good", SamplingParams(max_tokens=9)))
        with pytest.raises(InvalidRequest, match="prompt must hold at least one token"):
            await engine.submit(Request([], SamplingParams(), id="bad"))
        return await good

    with running() as engine:
        assert len(run(both(engine)).tokens) == 9


def test_the_stream_sums_up_its_rounds() -> None:
    async def stats(engine: AsyncEngine) -> tuple[int, int]:
        stream = await engine.submit(Request(PROMPT, SamplingParams(max_tokens=12, ignore_eos=True), id="r"))
        answer = await collect(stream)
        by_proposer = stream.stats.by_proposer.values()
        return sum(stats.emitted for stats in by_proposer), len(answer.tokens)

    with running() as engine:
        emitted, tokens = run(stats(engine))
    # The first token comes from the prompt.
    assert emitted == tokens - 1 > 0


class TestAbort:
    def test_the_request_is_gone_before_the_next_step(self) -> None:
        runner = GatedRunner(hashed(VOCAB), VOCAB)

        async def cut(engine: AsyncEngine) -> Answer:
            stream = await engine.submit(Request(PROMPT, ENDLESS, id="r"))
            assert await asyncio.to_thread(runner.reached.acquire, timeout=5)
            engine.abort("r")
            runner.go.release()
            return await collect(stream)

        with running(runner) as engine:
            answer = run(cut(engine))
            assert engine.call(lambda: engine.engine.backend.kv.pool.in_use).result(5) == 0
        assert (answer.finish_reason, len(runner.forwards)) == (FinishReason.ABORT, 1)

    def test_the_others_go_on_unchanged(self) -> None:
        params = SamplingParams(max_tokens=40, ignore_eos=True)

        async def cut_half(engine: AsyncEngine) -> list[Answer]:
            streams = [await engine.submit(Request([at, *PROMPT], params, id=f"r{at}")) for at in range(4)]
            for stream in streams[::2]:
                engine.abort(stream.request_id)
            return [await collect(stream) for stream in streams[1::2]]

        with running() as engine:
            answers = run(cut_half(engine))
        assert [answer.tokens for answer in answers] == [plain_answer(params, [at, *PROMPT]) for at in (1, 3)]

    def test_a_caller_who_is_cancelled_while_queueing_leaves_nothing_behind(self) -> None:
        runner = GatedRunner(hashed(VOCAB), VOCAB)

        async def cancel(engine: AsyncEngine) -> None:
            await engine.submit(Request(PROMPT, ENDLESS, id="busy"))
            assert await asyncio.to_thread(runner.reached.acquire, timeout=5)
            queueing = asyncio.create_task(engine.submit(Request(PROMPT, ENDLESS, id="late")))
            await asyncio.sleep(0)
            queueing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await queueing
            engine.abort("busy")
            runner.go.release()

        with running(runner) as engine:
            run(cancel(engine))
            assert engine.call(lambda: engine.engine.has_work).result(5) is False

    def test_a_stream_whose_loop_is_closed_is_aborted(self) -> None:
        with running() as engine:
            run(engine.submit(Request(PROMPT, SamplingParams(max_tokens=200, ignore_eos=True), id="r")))
            answer = run(ask(engine, "next", SamplingParams(max_tokens=5, ignore_eos=True)))
            assert engine.call(lambda: engine.engine.has_work).result(5) is False
        assert len(answer.tokens) == 5


class TestDeath:
    def test_everybody_who_waits_is_told(self) -> None:
        runner = GatedRunner(hashed(VOCAB), VOCAB)

        async def three(engine: AsyncEngine) -> list[Any]:
            streams = [await engine.submit(Request(PROMPT, ENDLESS, id="r0"))]
            assert await asyncio.to_thread(runner.reached.acquire, timeout=5)
            waiting = [asyncio.create_task(engine.submit(Request(PROMPT, ENDLESS, id=f"r{at}"))) for at in (1, 2)]
            await asyncio.sleep(0)
            runner.fault = ValueError("a broken kernel")
            runner.go.release(10)
            outcomes = await asyncio.gather(collect(streams[0]), *waiting, return_exceptions=True)
            return [outcome for outcome in outcomes if isinstance(outcome, EngineStopped)]

        with running(runner) as engine:
            told = run(three(engine))
            assert {str(error) for error in told} == {"the engine has failed: ValueError: a broken kernel"}
            assert (len(told), engine.alive, type(engine.failure)) == (3, False, ValueError)

    def test_who_comes_later_is_refused(self) -> None:
        with running() as engine:
            engine.engine.step = None  # type: ignore[method-assign,assignment]
            with pytest.raises(EngineStopped):
                run(ask(engine, "r", ENDLESS))
            with pytest.raises(EngineStopped, match="the engine has failed: TypeError"):
                run(ask(engine, "later", ENDLESS))

    def test_an_abort_that_fails_ends_the_engine(self) -> None:
        with running() as engine:
            engine.engine.abort = None  # type: ignore[method-assign,assignment]
            engine.abort("anything")
            engine.stop()
            assert (type(engine.failure), engine.alive) == (TypeError, False)
            assert engine.ended_at is not None

    def test_a_failing_call_is_the_callers_own(self) -> None:
        with running() as engine:
            with pytest.raises(ZeroDivisionError):
                engine.call(lambda: 1 // 0).result(5)
            assert engine.alive


class TestStop:
    def test_a_drain_lets_requests_finish_and_takes_no_new_ones(self) -> None:
        runner = GatedRunner(hashed(VOCAB), VOCAB)
        params = SamplingParams(max_tokens=30, ignore_eos=True)

        async def drain(engine: AsyncEngine) -> Answer:
            stream = await engine.submit(Request(PROMPT, params, id="r"))
            assert await asyncio.to_thread(runner.reached.acquire, timeout=5)
            engine.drain(10)
            late = asyncio.create_task(engine.submit(Request(PROMPT, params, id="late")))
            await asyncio.sleep(0)
            runner.go.release(1000)
            answer = await collect(stream)
            with pytest.raises(EngineStopped):
                await late
            return answer

        with running(runner) as engine:
            assert run(drain(engine)).tokens == plain_answer(params, PROMPT)

    def test_without_a_drain_requests_are_cut_off_and_their_memory_is_free(self) -> None:
        runner = GatedRunner(hashed(VOCAB), VOCAB)

        async def cut(engine: AsyncEngine) -> None:
            stream = await engine.submit(Request(PROMPT, ENDLESS, id="r"))
            assert await asyncio.to_thread(runner.reached.acquire, timeout=5)
            engine.drain(0)
            runner.go.release()
            with pytest.raises(EngineStopped, match="the engine has stopped"):
                await collect(stream)

        with running(runner) as engine:
            run(cut(engine))
            engine.stop()
        assert (engine.failure, engine.load().running, engine.engine.backend.kv.pool.in_use) == (None, 0, 0)

    def test_an_engine_that_never_started_refuses(self) -> None:
        engine = AsyncEngine(speculating(ScriptedRunner(hashed(VOCAB), VOCAB), hashed(VOCAB)))
        engine.stop()
        with pytest.raises(EngineStopped):
            run(ask(engine, "r", ENDLESS))


def test_the_load_is_told_without_waiting_for_a_step() -> None:
    runner = GatedRunner(hashed(VOCAB), VOCAB)

    async def busy(engine: AsyncEngine, look: Callable[[], None]) -> None:
        await engine.submit(Request(PROMPT, ENDLESS, id="r"))
        runner.go.release()
        for _ in range(2):
            assert await asyncio.to_thread(runner.reached.acquire, timeout=5)
        look()

    with running(runner) as engine:

        def look() -> None:
            load = engine.load()
            assert (load.running, load.waiting, load.kv_total) == (1, 0, 64)
            assert load.kv_used > 0

        run(busy(engine, look))


def test_the_times_of_a_request_are_known_at_its_end() -> None:
    async def timeline(engine: AsyncEngine) -> Any:
        stream = await engine.submit(Request(PROMPT, SamplingParams(max_tokens=6, ignore_eos=True), id="r"))
        await collect(stream)
        return stream.timeline

    with running() as engine:
        timed = run(timeline(engine))
    assert (timed.output_tokens, timed.finish_reason) == (6, FinishReason.LENGTH)
    assert timed.arrived <= timed.scheduled <= timed.first_token <= timed.finished
