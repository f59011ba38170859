"""Whatever is sent: an answer or a refusal, in time, and never a fault of the server."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from served import Running

from gamaneh.server.schemas import ChatRequest, CompletionRequest

BOUNDED = settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 300),
    st.integers(),
    st.floats(),
    st.sampled_from([0, 1, 0.5, "auto", "match", "json_object", "text", "user", "function", "content", ""]),
    st.text(max_size=8),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=6) | st.sampled_from(["0", "97", "type"]), inner, max_size=3)
    ),
    max_leaves=8,
)

SENSIBLE: dict[str, st.SearchStrategy[Any]] = {
    "prompt": st.one_of(
        st.text(max_size=40), st.lists(st.integers(0, 259), max_size=40), st.lists(st.text(max_size=5), max_size=3)
    ),
    "messages": st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "system", "assistant"]), "content": st.text(max_size=20)}
        ),
        max_size=3,
    ),
    "max_tokens": st.integers(0, 12),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0, 1),
    "top_k": st.integers(0, 5),
    "min_p": st.floats(0, 1),
    "n": st.integers(1, 3),
    "seed": st.integers(-(2**63), 2**64 - 1),
    "stop": st.text(max_size=2) | st.lists(st.text(min_size=1, max_size=2), max_size=3),
    "stream": st.booleans(),
    "logit_bias": st.dictionaries(st.integers(0, 259).map(str), st.floats(-100, 100), max_size=3),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "repetition_penalty": st.floats(0.5, 2),
    "echo": st.booleans(),
    "logprobs": st.integers(0, 3) | st.booleans(),
    "speculation": st.fixed_dictionaries(
        {},
        optional={
            "enabled": st.booleans(),
            "draft_length": st.integers(0, 15),
            "metrics": st.booleans(),
            "tokens": st.booleans(),
            "rule": st.sampled_from(["match", "typical", "rejection", "block"]),
        },
    ),
    "prediction": st.fixed_dictionaries({"type": st.just("content"), "content": st.text(max_size=20)}),
    "response_format": st.sampled_from([{"type": "json_object"}, {"type": "text"}]),
}


def bodies(kind: type[CompletionRequest] | type[ChatRequest], subject: str) -> st.SearchStrategy[dict[str, Any]]:
    """Bodies whose fields are sensible, or anything."""
    fields = {name: SENSIBLE.get(name, VALUES) | VALUES for name in kind.model_fields if name != "model"}
    return st.fixed_dictionaries(
        {subject: SENSIBLE[subject]}, optional={n: f for n, f in fields.items() if n != subject}
    )


def assert_answered(server: Running, path: str, content: bytes) -> None:
    response = server.http.post(path, content=content, timeout=20)
    assert response.status_code < 500, (content, response.text)
    if response.status_code != 200:
        error = response.json()["error"]
        assert error["message"] and error["type"]
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert response.text.endswith("data: [DONE]\n\n"), response.text
    else:
        assert response.json()["choices"]


@BOUNDED
@given(body=bodies(CompletionRequest, "prompt"))
def test_completions(server: Running, body: dict[str, Any]) -> None:
    assert_answered(server, "/v1/completions", json.dumps({"max_tokens": 5, **body}).encode())


@BOUNDED
@given(body=bodies(ChatRequest, "messages"))
def test_chats(server: Running, body: dict[str, Any]) -> None:
    assert_answered(server, "/v1/chat/completions", json.dumps({"max_tokens": 5, **body}).encode())


@BOUNDED
@given(content=st.binary(max_size=60) | VALUES.map(json.dumps).map(str.encode))
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_bodies_that_are_anything(server: Running, path: str, content: bytes) -> None:
    assert_answered(server, path, content)


def test_the_engine_is_well_and_empty_after_all_this(server: Running) -> None:
    assert server.http.get("/health").status_code == 200
    assert server.blocks_in_use() == 0
    server.on_engine(server.engine.check_integrity)
