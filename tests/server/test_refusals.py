"""What is wrong is refused by name, with an error object, and harms nobody else."""

from __future__ import annotations

import pytest
from served import Running

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"k": -1}, "k"),
        ({"speculation": {"lenght": 3}}, "speculation.lenght"),
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -0.5}, "temperature"),
        ({"temperature": 101}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"n": 0}, "n"),
        ({"n": 1.0}, "n"),
        ({"n": True}, "n"),
        ({"n": 99}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"min_tokens": 9, "max_tokens": 5}, "min_tokens"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {"1": "much"}}, "logit_bias.1"),
        ({"seed": "x"}, "seed"),
        ({"seed": 2**64}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": [1]}, "stop.0"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"stop_token_ids": [260]}, "stop_token_ids"),
        ({"bad_words": [""]}, "bad_words"),
        ({"stream": "yes"}, "stream"),
        ({"priority": 1001}, "priority"),
        ({"prediction": {"type": "image"}}, "prediction.type"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "x"}, "suffix"),
    ],
)
def test_a_wrong_field_is_named(server: Running, body: dict, param: str) -> None:
    error = server.refusal(**{"prompt": "a", **body})
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert param in error["message"] or param.split(".")[0] in error["message"]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]}, None),
        ({"messages": USER, "top_logprobs": 3}, "top_logprobs"),
        ({"messages": USER, "logprobs": 3}, "logprobs"),
        ({"messages": USER, "tool_choice": "required"}, "tool_choice"),
        ({"messages": USER, "tools": [{"type": "function"}]}, "tools.0.function"),
        ({"messages": USER, "response_format": {"type": "xml"}}, "response_format.type"),
        ({"messages": USER, "response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"messages": USER, "functions": [{"name": "f"}]}, "functions"),
    ],
)
def test_a_wrong_chat_is_named(server: Running, body: dict, param: str | None) -> None:
    error = server.refusal(CHAT, **body)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == (param or "messages.0.content.0.type")


@pytest.mark.parametrize("body", [b"", b"{", b"null", b"[]", b'"text"', b"\xff\xfe", b'{"prompt":"a","seed":1e999}'])
@pytest.mark.parametrize("path", ["/v1/completions", CHAT])
def test_a_body_that_is_no_json_object_is_refused(server: Running, path: str, body: bytes) -> None:
    response = server.http.post(path, content=body)
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


def test_another_model_is_not_found(server: Running) -> None:
    assert server.refusal(status=404, prompt="a", model="gpt-4")["code"] == "model_not_found"


def test_a_long_wrong_value_is_not_repeated_at_length(server: Running) -> None:
    assert len(server.refusal(prompt="a", temperature="x" * 5000)["message"]) < 300


def test_the_next_request_is_served(server: Running) -> None:
    for body in ({"prompt": [999]}, {"prompt": "a", "logit_bias": {"999": 1}}, {"prompt": ""}):
        server.refusal(**body)
    assert server.complete(max_tokens=2, ignore_eos=True)["usage"]["completion_tokens"] == 2
    assert server.blocks_in_use() == 0
