"""CASES kind 33: the health of the engine, and what becomes of everybody when it dies."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest
from served import MODEL, ChatBytes, GatedRunner, Running, engine_for, until

from gamaneh.engine.async_engine import AsyncEngine
from gamaneh.options import EngineOptions
from gamaneh.server.lifecycle import Server, bind
from gamaneh.server.server_options import ServerOptions
from gamaneh.server.service import Service
from gamaneh.testing import hashed

FAULT = RuntimeError("a kernel crashed")
BODY = {"prompt": "hello", "max_tokens": 40, "ignore_eos": True}


@pytest.fixture
def runner() -> GatedRunner:
    return GatedRunner(hashed(260), 260)


@pytest.fixture
def mortal(start, runner: GatedRunner) -> Running:
    """A server that goes on for a second when its engine has died."""
    running: Running = start(engine_for(runner=runner), ServerOptions(failure_seconds=1.0))
    return running


def health(running: Running) -> int:
    return running.http.get("/health").status_code


def send(running: Running, pool: ThreadPoolExecutor, count: int) -> list[Future[httpx.Response]]:
    sent = [pool.submit(httpx.post, f"{running.url}/v1/completions", json=BODY, timeout=20) for _ in range(count)]
    until(lambda: running.service.gate.taken == count)
    return sent


@pytest.mark.parametrize("after", [0, 3], ids=["reading the prompt", "verifying"])
def test_when_a_forward_kills_the_engine_everybody_is_told(mortal: Running, runner: GatedRunner, after: int) -> None:
    runner.fault, runner.fault_after = FAULT, after
    with ThreadPoolExecutor(3) as pool:
        pending = send(mortal, pool, 3)
        assert health(mortal) == 200
        died = time.monotonic()
        runner.open()
        responses = [each.result() for each in pending]
        assert time.monotonic() - died < 5
    assert {response.status_code for response in responses} == {503}
    assert "a kernel crashed" in responses[0].json()["error"]["message"]


def test_the_dead_engine_shows_and_takes_nothing_new(start, runner: GatedRunner) -> None:
    running = start(engine_for(runner=runner), ServerOptions(failure_seconds=30.0))
    runner.fault = FAULT
    runner.open()
    assert running.refusal(status=503, **BODY)["code"] == "engine_stopped"
    assert running.http.get("/health").json()["failure"] == "RuntimeError: a kernel crashed"
    assert (health(running), running.http.get("/ready").status_code) == (503, 503)
    response = running.http.post("/v1/completions", json=BODY)
    assert (response.status_code, "Retry-After" in response.headers) == (503, True)
    assert running.http.get("/v1/speculation").status_code == 503
    assert running.http.get("/metrics").status_code == 200


def test_an_idle_engine_that_dies_shows(start) -> None:
    running = start(engine_for(), ServerOptions(failure_seconds=30.0))
    running.engine.abort = None  # type: ignore[method-assign,assignment]
    running.service.engine.abort("anything")
    until(lambda: health(running) == 503, seconds=5)


def test_the_server_ends_by_itself_and_says_that_it_failed(runner: GatedRunner) -> None:

    service = Service(AsyncEngine(engine_for(runner=runner)), ChatBytes(), MODEL, ServerOptions(failure_seconds=0.0))
    bound = bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    bound.listen()
    outcome: list[bool] = []
    thread = threading.Thread(target=lambda: outcome.append(Server(service).serve_on(bound)))
    thread.start()
    runner.fault = FAULT
    runner.open()
    assert httpx.post(f"{url}/v1/completions", json=BODY).status_code == 503
    thread.join(10)
    assert outcome == [False]


def test_a_stream_ends_with_an_error_event(mortal: Running, runner: GatedRunner) -> None:
    runner.fault, runner.fault_after = FAULT, 3
    runner.open()
    text = mortal.http.post("/v1/completions", json={**BODY, "stream": True}).text
    assert "event: error\n" in text and "[DONE]" not in text


def test_a_long_step_is_not_an_illness(mortal: Running, runner: GatedRunner) -> None:
    with ThreadPoolExecutor(1) as pool:
        pending = send(mortal, pool, 1)
        until(lambda: mortal.service.engine.load().waiting == 1)
        for _ in range(20):
            assert health(mortal) == 200
        runner.open()
        assert pending[0].result().status_code == 200
    assert mortal.engine.backend.kv.stats.admitted == 1


def test_a_step_without_end_is_one(start, runner: GatedRunner) -> None:
    running = start(engine_for(runner=runner), ServerOptions(stall_seconds=0.2))
    with ThreadPoolExecutor(1) as pool:
        pending = send(running, pool, 1)
        until(lambda: health(running) == 503)
        runner.open()
        assert pending[0].result().status_code == 200
        assert health(running) == 200


class TestEnd:
    def test_what_is_in_the_making_is_finished(self, start, runner: GatedRunner) -> None:
        running = start(engine_for(runner=runner))
        with ThreadPoolExecutor(1) as pool:
            pending = send(running, pool, 1)
            running.server.should_exit = True
            until(lambda: running.service.draining)
            runner.open()
            assert pending[0].result().json()["usage"]["completion_tokens"] == 40

    def test_what_takes_longer_than_the_drain_is_told(self, start, runner: GatedRunner) -> None:
        options = EngineOptions(max_batch=1, step_tokens=64)
        running = start(engine_for(runner=runner, options=options), ServerOptions(drain_seconds=0.0))
        with ThreadPoolExecutor(2) as pool:
            pending = send(running, pool, 2)
            running.server.should_exit = True
            until(lambda: running.service.draining)
            runner.open(1)
            answers = [each.result() for each in pending]
        assert {answer.status_code for answer in answers} == {503}
        assert running.engine.backend.kv.pool.in_use == 0
