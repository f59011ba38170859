"""CASES kind 13: a client that goes away stops its request at once, and nobody else's."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from served import PacedRunner, Running, engine_for, serving, until

from gamaneh.options import EngineOptions
from gamaneh.testing import hashed

LONG = {"prompt": "hello", "max_tokens": 2000, "temperature": 0, "ignore_eos": True}
SHORT = {"max_tokens": 20, "temperature": 0, "ignore_eos": True}


def paced(max_batch: int) -> Iterator[Running]:
    runner = PacedRunner(hashed(260), 260, max_context=4096, num_blocks=4096)
    options = EngineOptions(max_batch=max_batch, step_tokens=64)
    with serving(engine_for(runner=runner, options=options)) as running:
        yield running


@pytest.fixture(scope="module")
def one_slot() -> Iterator[Running]:
    yield from paced(max_batch=1)


@pytest.fixture(scope="module")
def four_slots() -> Iterator[Running]:
    yield from paced(max_batch=4)


def read_some(running: Running, chunks: int, path: str = "/v1/completions", **body: object) -> None:
    """Read the first chunks of a stream and go away."""
    with httpx.stream("POST", f"{running.url}{path}", json={**body, "stream": True}, timeout=10) as response:
        lines = (line for line in response.iter_lines() if line)
        for _ in range(chunks):
            next(lines)


def assert_idle(running: Running) -> None:
    """Nothing runs, nothing is held."""
    until(lambda: not running.on_engine(lambda: running.engine.has_work), seconds=1.0)
    assert running.blocks_in_use() == 0
    running.on_engine(running.engine.check_integrity)
    until(lambda: running.service.gate.taken == 0, seconds=1.0)


@pytest.mark.parametrize("chunks", [0, 1, 3])
def test_the_slot_is_free_again_each_time(one_slot: Running, chunks: int) -> None:
    expected = one_slot.text("and now", **SHORT)
    for _ in range(17):
        read_some(one_slot, chunks, **LONG)
    assert_idle(one_slot)
    assert one_slot.text("and now", **SHORT) == expected


def test_a_request_that_is_not_streamed_stops_too(one_slot: Running) -> None:
    body = httpx.Request("POST", f"{one_slot.url}/v1/completions", json=LONG)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body.content)}\r\n\r\n"
    with socket.create_connection((body.url.host, body.url.port)) as connection:
        connection.sendall(head.encode() + body.content)
        until(lambda: one_slot.on_engine(lambda: one_slot.engine.has_work))
    assert_idle(one_slot)


def test_a_request_that_waits_in_the_queue_goes_too(one_slot: Running) -> None:
    url = f"{one_slot.url}/v1/completions"
    with httpx.stream("POST", url, json={**LONG, "stream": True}, timeout=10) as response:
        next(response.iter_lines())
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(url, json=LONG, timeout=0.3)
        until(lambda: one_slot.on_engine(lambda: len(one_slot.engine.scheduler.waiting)) == 0, seconds=1.0)
    assert_idle(one_slot)


def test_all_answers_of_a_request_stop(four_slots: Running) -> None:
    read_some(four_slots, 2, **LONG, n=3)
    assert_idle(four_slots)


def test_chats_stop_too(four_slots: Running) -> None:
    chat = {**LONG, "messages": [{"role": "user", "content": "hello"}]}
    del chat["prompt"]
    read_some(four_slots, 2, "/v1/chat/completions", **chat)
    assert_idle(four_slots)


def test_of_four_the_two_that_stay_are_answered_as_alone(four_slots: Running) -> None:
    prompts = ["one", "two"]
    alone = [four_slots.text(prompt, **SHORT | {"max_tokens": 60}) for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        staying = [pool.submit(four_slots.text, prompt, **SHORT | {"max_tokens": 60}) for prompt in prompts]
        leaving = [pool.submit(read_some, four_slots, chunks, **LONG) for chunks in (1, 3)]
        assert [answer.result() for answer in staying] == alone
        for left in leaving:
            left.result()
    assert_idle(four_slots)


def test_half_a_request_holds_nothing(one_slot: Running) -> None:
    port = httpx.URL(one_slot.url).port
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n{")
        until(lambda: one_slot.service.gate.taken == 1)
    until(lambda: one_slot.service.gate.taken == 0)
