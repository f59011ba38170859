"""The end of a server: new requests are refused, old ones finished, and it ends in time whatever clients do."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from served import MODEL, VOCAB, ChatBytes, GatedRunner, engine_for, until

from gamaneh.engine.async_engine import AsyncEngine
from gamaneh.server.lifecycle import Server, bind
from gamaneh.server.server_options import ServerOptions
from gamaneh.server.service import Service
from gamaneh.testing import hashed


class Ending:
    """A server whose end is watched."""

    def __init__(self, options: ServerOptions) -> None:
        self.runner = GatedRunner(hashed(VOCAB), VOCAB, max_context=256, num_blocks=256)
        self.server = Server(Service(AsyncEngine(engine_for(runner=self.runner)), ChatBytes(), MODEL, options))
        self.bound = bind("127.0.0.1", 0)
        self.port = self.bound.getsockname()[1]
        self.bound.listen()
        self.orderly: list[bool] = []
        self.thread = threading.Thread(target=lambda: self.orderly.append(self.server.serve_on(self.bound)))
        self.thread.start()
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=20)
        until(lambda: self.http.get("/health").status_code == 200)

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.server.handle_exit(number, None)

    def seconds_to_end(self) -> float:
        started = time.monotonic()
        self.thread.join(20)
        assert not self.thread.is_alive()
        return time.monotonic() - started

    def send(self, text: str) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.sendall(text.encode())
        return connection


@contextmanager
def ending(**options: float) -> Iterator[Ending]:
    made = Ending(ServerOptions(**{"drain_seconds": 0.3, "grace_seconds": 0.0, **options}))  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.runner.open()
        made.signal()
        made.signal()
        made.thread.join(20)
        made.http.close()


def request(**fields: object) -> str:
    body = json.dumps({"prompt": "hello", "max_tokens": 200, "ignore_eos": True, **fields})
    head = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n{body}"


def test_it_goes_on_listening_and_refuses_with_a_time_to_come_back() -> None:
    with ending(grace_seconds=1.0) as one:
        one.signal()
        until(lambda: one.http.get("/ready").status_code == 503)
        response = httpx.post(f"http://127.0.0.1:{one.port}/v1/completions", json={"prompt": "a"})
        assert (response.status_code, response.headers["retry-after"]) == (503, "5")
        assert one.seconds_to_end() < 3
        assert one.orderly == [True]


@pytest.mark.parametrize("text", [request()[:-5], request(stream=True), "POST /v1/completions HTTP/1.1\r\nhost: local"])
def test_it_ends_in_time_whatever_clients_do(text: str, caplog: pytest.LogCaptureFixture) -> None:
    with ending() as one, one.send(text):
        if text == request(stream=True):
            until(lambda: one.server.service.engine.load().running + one.server.service.engine.load().waiting > 0)
        else:
            time.sleep(0.1)
        one.signal()
        one.runner.open()
        assert one.seconds_to_end() < 5
        assert one.orderly == [True]
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_of_either_kind_ends_it_at_once_and_not_orderly(second: int) -> None:
    with ending(drain_seconds=60.0) as one, one.send(request()) as connection:
        until(lambda: one.server.service.engine.load().waiting + one.server.service.engine.load().running > 0)
        one.signal()
        time.sleep(0.1)
        one.signal(second)
        one.runner.open(1)
        connection.settimeout(5)
        assert one.seconds_to_end() < 2
        assert one.orderly == [False]
        assert b" 503 " in connection.recv(1000).partition(b"\r\n")[0]
