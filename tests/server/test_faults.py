"""Nothing that a client sends makes a 500; a fault all the same is counted, logged once, and told with its request."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from served import Running, engine_for, until

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "hello"}]


def nested(depth: int) -> Any:
    value: Any = {"type": "integer"}
    for _ in range(depth):
        value = {"type": "object", "properties": {"a": value}}
    return value


BODIES: dict[str, tuple[str, Any]] = {
    "deep JSON": (CHAT, '{"messages": ' + "[" * 5000 + "]" * 5000 + "}"),
    "deep schema": (
        CHAT,
        {
            "messages": USER,
            "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": nested(60)}},
        },
    ),
    "deep tool": (
        CHAT,
        {
            "messages": USER,
            "tools": [{"type": "function", "function": {"name": "f", "parameters": nested(60)}}],
            "tool_choice": "required",
        },
    ),
    "huge bias": ("/v1/completions", {"prompt": "a", "logit_bias": {"1": 1e39}}),
    "infinite in float32": ("/v1/completions", {"prompt": "a", "logit_bias": {"1": 3e38, "2": 1e300}}),
    "surrogates": ("/v1/completions", '{"prompt": "a\\ud800b", "max_tokens": 2}'),
    "surrogates in a name": ("/v1/completions", '{"prompt": "a", "\\udfff": 2}'),
    "surrogates in arguments": (
        CHAT,
        {
            "messages": [
                {
                    "role": "assistant",
                    "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": '{"x": "\\ud800"}'}}],
                },
                *USER,
            ],
            "max_tokens": 2,
        },
    ),
    "huge number": ("/v1/completions", '{"prompt": "a", "seed": ' + "9" * 5000 + "}"),
    "nul": ("/v1/completions", {"prompt": "\0", "stop": "\0", "max_tokens": 2}),
    "seeds at the edge": ("/v1/completions", {"prompt": "a", "seed": 2**64 - 1, "n": 3, "max_tokens": 2}),
}


@pytest.mark.parametrize("name", BODIES)
def test_what_a_client_sends_makes_no_fault(server: Running, name: str) -> None:
    path, body = BODIES[name]
    text = body if isinstance(body, str) else json.dumps(body)
    response = server.http.post(path, content=text, headers={"Content-Type": "application/json"})
    assert response.status_code in (200, 400), response.text
    assert server.complete(max_tokens=2, ignore_eos=True)["usage"]["completion_tokens"] == 2


def test_a_fault_is_counted_logged_and_told_with_its_request(start, caplog: pytest.LogCaptureFixture) -> None:
    running = start(engine_for())

    def broken(*args: Any) -> Any:
        raise RuntimeError("x" * 100_000)

    running.service.preparation.tokenizer.encode = broken
    with caplog.at_level(logging.INFO, "gamaneh.server"):
        response = running.http.post("/v1/completions", json={"prompt": "a"}, headers={"x-request-id": "abc-1"})
        until(lambda: len(caplog.records) >= 2)
    assert response.status_code == 500
    assert (response.headers["connection"], response.headers["x-request-id"]) == ("close", "abc-1")
    assert "abc-1" in response.json()["error"]["message"]
    faults = [record for record in caplog.records if record.message == "fault"]
    assert len(faults) == 1
    assert len(faults[0].fields["exception"]) < 5000  # type: ignore[attr-defined]
    assert 'route="/v1/completions",status="500"} 1.0' in running.http.get("/metrics").text


class TestRequestIds:
    def test_ours_are_new_each_time(self, server: Running) -> None:
        ids = {server.http.get("/health").headers["x-request-id"] for _ in range(3)}
        assert len(ids) == 3

    @pytest.mark.parametrize("bad", ["a b", "x" * 200, ""])
    def test_one_that_is_none_is_replaced(self, server: Running, bad: str) -> None:
        assert server.http.get("/health", headers={"x-request-id": bad}).headers["x-request-id"] != bad


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [("/v1/completions", None, 415), ("/nothing", {}, 404), ("/v1/completions", {"prompt": ""}, 400)],
)
def test_every_refusal_is_one_line(start, path: str, body: Any, status: int, caplog: pytest.LogCaptureFixture) -> None:
    running = start(engine_for())
    with caplog.at_level(logging.INFO, "gamaneh.server"):
        kind = "text/plain" if body is None else "application/json"
        response = running.http.post(path, content=json.dumps(body), headers={"Content-Type": kind})
        assert response.status_code == status
        until(lambda: any(record.message in ("refused", "request") for record in caplog.records))
    lines = [record.fields for record in caplog.records if record.message in ("refused", "request")]  # type: ignore[attr-defined]
    assert [line["status"] for line in lines] == [status]
    assert lines[0]["request_id"] == response.headers["x-request-id"]
