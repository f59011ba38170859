"""Who is served, and how much: keys, bounded queue, bounded bodies and lengths."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from served import GatedRunner, Running, engine_for, serving, until

from gamaneh.errors import InvalidOption
from gamaneh.options import EngineOptions
from gamaneh.server.access import Client, Gate, KeyRing
from gamaneh.server.api_errors import ApiError
from gamaneh.server.app import speculation_state
from gamaneh.server.server_options import ServerOptions
from gamaneh.testing import hashed


def entry(name: str, key: str) -> str:
    return f"{name}={hashlib.sha256(key.encode()).hexdigest()}"


class TestKeys:
    @pytest.fixture
    def guarded(self, start) -> Running:
        keys = KeyRing([entry("alice", "sesame"), entry("bob", "open")])
        running: Running = start(engine_for(), keys=keys)
        return running

    @pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer", "Basic sesame", "sesame", "Bearer sesame2"])
    def test_without_a_known_key_nothing_is_done(self, guarded: Running, header: str | None) -> None:
        headers = {} if header is None else {"Authorization": header}
        for method, path in [("POST", "/v1/completions"), ("GET", "/v1/models"), ("GET", "/v1/speculation")]:
            response = guarded.http.request(method, path, headers=headers)
            assert response.status_code == 401
            assert response.json()["error"]["code"] == "invalid_api_key"

    @pytest.mark.parametrize("header", ["Bearer sesame", "bearer open", "BEARER  open"])
    def test_a_known_key_is_served(self, guarded: Running, header: str) -> None:
        response = guarded.http.post(
            "/v1/completions", json={"prompt": "a", "max_tokens": 2}, headers={"Authorization": header}
        )
        assert response.status_code == 200

    @pytest.mark.parametrize("path", ["/health", "/ready", "/metrics", "/"])
    def test_probes_and_the_page_need_none(self, guarded: Running, path: str) -> None:
        assert guarded.http.get(path).status_code == 200

    def test_keys_do_not_share_cached_prefixes(self, guarded: Running) -> None:
        def cached(key: str) -> int:
            response = guarded.http.post(
                "/v1/completions",
                json={"prompt": "a prompt that both of them know well", "max_tokens": 1},
                headers={"Authorization": f"Bearer {key}"},
            )
            count: int = response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            return count

        assert [cached("sesame"), cached("open")] == [0, 0]
        assert cached("sesame") > 0

    def test_nobody_sees_what_the_requests_of_others_are_doing(self, start) -> None:
        runner = GatedRunner(hashed(260), 260)
        keys = KeyRing([entry("alice", "sesame"), entry("bob", "open")])
        running = start(engine_for(runner=runner, accuracy=0.0), keys=keys)

        def ask(key: str) -> None:
            body = {"prompt": "a", "max_tokens": 200, "ignore_eos": True}
            running.http.post("/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"})

        def look(key: str) -> Future[Any]:
            client = running.service.keys.identify({"authorization": f"Bearer {key}"})
            return running.service.engine.call(lambda: speculation_state(running.engine, client)["requests"])

        def seen() -> list[int]:
            looks = [look("sesame"), look("open")]
            runner.open(1)
            return [len(each.result(10)) for each in looks]

        with ThreadPoolExecutor() as pool:
            asking = [pool.submit(ask, key) for key in ("sesame", "sesame", "open")]
            until(lambda: seen() == [2, 1])
            runner.open()
            for request in asking:
                request.result()

    def test_entries_must_be_hashes_with_names_of_their_own(self) -> None:
        for entries in (["alice"], ["alice=sesame"], [entry("alice", "a"), entry("alice", "b")]):
            with pytest.raises(InvalidOption, match="api_key must be NAME=SHA256"):
                KeyRing(entries)

    def test_salts_tell_clients_and_their_own_salts_apart(self) -> None:
        salts = [Client("a").salt(None), Client("a").salt("b"), Client("ab").salt(None), Client().salt("b")]
        assert len({*salts, Client().salt(None)}) == 5


class TestGate:
    def test_it_is_full_at_its_capacity_and_open_again_after(self) -> None:
        gate = Gate(capacity=2, at_once=1)
        tickets = [gate.enter(Client()) for _ in range(2)]
        with pytest.raises(ApiError) as refusal:
            gate.enter(Client())
        assert (refusal.value.status, refusal.value.code) == (429, "queue_full")
        tickets[0].release()
        tickets[0].release()
        gate.enter(Client())
        with pytest.raises(ApiError):
            gate.enter(Client())

    def test_a_key_has_a_bound_of_its_own(self) -> None:
        gate = Gate(capacity=9, at_once=1, per_key=1)
        gate.enter(Client("alice"))
        gate.enter(Client("bob"))
        with pytest.raises(ApiError) as refusal:
            gate.enter(Client("alice"))
        assert refusal.value.code == "concurrency_exceeded"

    def test_a_ticket_that_cannot_grow_keeps_what_it_has(self) -> None:
        gate = Gate(capacity=3, at_once=1)
        ticket = gate.enter(Client())
        with pytest.raises(ApiError):
            ticket.grow(3)
        ticket.release()
        assert gate.taken == 0

    def test_it_says_to_come_back_when_answers_take_longer(self) -> None:
        gate = Gate(capacity=9, at_once=1)
        quick = gate.retry_after()
        for _ in range(50):
            gate.enter(Client()).release(20.0)
        assert quick < gate.retry_after() <= 60


@contextmanager
def busy(running: Running, runner: GatedRunner, count: int, **headers: str) -> Iterator[None]:
    """While inside, `count` requests are in the making."""
    with ThreadPoolExecutor(count) as pool:
        for _ in range(count):
            pool.submit(running.http.post, "/v1/completions", json={"prompt": "a", "max_tokens": 3}, headers=headers)
        until(lambda: running.service.gate.taken == count)
        yield
        runner.open()


class TestTooBusy:
    @pytest.fixture
    def runner(self) -> GatedRunner:
        return GatedRunner(hashed(260), 260)

    def test_a_full_queue_is_429_and_says_when_to_come_back(self, start, runner: GatedRunner) -> None:
        options = EngineOptions(max_batch=1, step_tokens=64)
        running = start(engine_for(runner=runner, options=options), ServerOptions(max_waiting=1, max_choices=2))
        with busy(running, runner, 2):
            response = running.http.post("/v1/completions", json={"prompt": "b"})
            assert (response.status_code, response.json()["error"]["type"]) == (429, "rate_limit_error")
            assert int(response.headers["Retry-After"]) >= 1
            assert running.http.get("/health").status_code == 200
        assert running.complete("b", max_tokens=2)

    def test_more_answers_than_there_is_room_for_are_429(self, start, runner: GatedRunner) -> None:
        options = EngineOptions(max_batch=1, step_tokens=64)
        running = start(engine_for(runner=runner, options=options), ServerOptions(max_waiting=1, max_choices=2))
        with busy(running, runner, 1):
            assert running.refusal(status=429, prompt="b", n=2)["code"] == "queue_full"
        assert running.service.gate.taken == 0

    def test_a_key_at_its_bound_is_429_and_another_is_served(self, start, runner: GatedRunner) -> None:
        keys = KeyRing([entry("alice", "sesame"), entry("bob", "open")])
        running = start(engine_for(runner=runner), ServerOptions(max_per_key=1), keys)
        alice = {"Authorization": "Bearer sesame"}
        with busy(running, runner, 1, **alice):
            assert running.http.post("/v1/completions", json={"prompt": "b"}, headers=alice).status_code == 429
            bob = threading.Thread(
                target=running.http.post,
                args=["/v1/completions"],
                kwargs={"json": {"prompt": "b", "max_tokens": 2}, "headers": {"Authorization": "Bearer open"}},
            )
            bob.start()
            until(lambda: running.service.gate.taken == 2)
        bob.join(10)


@pytest.fixture(scope="module")
def strict() -> Iterator[Running]:
    options = ServerOptions(max_body_bytes=400, max_prompt_tokens=20, max_output_tokens=6)
    with serving(engine_for(), options) as running:
        yield running


class TestSizes:
    def test_a_long_body_is_413(self, strict: Running) -> None:
        assert strict.refusal(status=413, prompt="a" * 500)["code"] == "request_too_large"

    def test_a_long_body_of_unknown_length_is_413(self, strict: Running) -> None:
        response = strict.http.post("/v1/completions", content=(b"a" * 100 for _ in range(50)))
        assert response.status_code == 413

    def test_a_long_prompt_is_refused(self, strict: Running) -> None:
        error = strict.refusal(prompt="a" * 21)
        assert (error["code"], error["message"]) == (
            "prompt_too_long",
            "prompt must have at most 20 tokens, got 21",
        )

    @pytest.mark.parametrize("asked", [{}, {"max_tokens": 100}])
    def test_a_long_output_is_cut(self, strict: Running, asked: dict) -> None:
        answer = strict.complete(ignore_eos=True, **asked)
        assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (6, "length")
