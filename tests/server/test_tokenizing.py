"""Text to token ids and back, as clients of other engines ask for it."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from served import Running, engine_for

from gamaneh import __version__
from gamaneh.server.access import KeyRing
from gamaneh.server.server_options import ServerOptions

KEYS = KeyRing([f"a={hashlib.sha256(b'sesame').hexdigest()}"])


@pytest.mark.parametrize("name", ["prompt", "content"])
def test_a_text_comes_back(server: Running, name: str) -> None:
    told = server.post("/tokenize", **{name: "سلام"}, return_token_strs=True)
    assert told["tokens"] == list("سلام".encode())
    assert (told["count"], told["max_model_len"]) == (8, 256)
    assert len(told["token_strs"]) == 8
    assert server.post("/detokenize", tokens=told["tokens"]) == {"prompt": "سلام", "content": "سلام"}


def test_a_conversation_is_put_into_the_template(server: Running) -> None:
    told = server.post("/tokenize", messages=[{"role": "user", "content": "hi"}])
    assert bytes(told["tokens"]) == b"user: hi\n"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "content": "b"}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "x" * 100_000}, "prompt"),
        ("/detokenize", {"tokens": [260]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens.0"),
        ("/detokenize", {}, "tokens"),
    ],
)
def test_what_is_wrong_is_named(server: Running, path: str, body: dict[str, Any], param: str) -> None:
    assert server.refusal(path, **body)["param"] == param


@pytest.mark.parametrize("headers", [{"x-api-key": "sesame"}, {"Authorization": "Bearer sesame"}])
@pytest.mark.parametrize(
    ("path", "body"), [("/tokenize", {"prompt": "a"}), ("/v1/completions", {"prompt": "a", "max_tokens": 1})]
)
def test_a_key_is_taken_in_either_header(start, headers: dict[str, str], path: str, body: dict[str, Any]) -> None:
    running = start(engine_for(), keys=KEYS)
    assert running.http.post(path, json=body, headers=headers).status_code == 200
    assert running.http.post(path, json=body).status_code == 401


def test_the_version_is_told(server: Running) -> None:
    assert server.http.get("/version").json() == {"version": __version__}


def test_more_answers_than_can_ever_fit_are_refused_for_good(start) -> None:
    running = start(engine_for(), ServerOptions(max_per_key=2), KEYS)
    response = running.http.post("/v1/completions", json={"prompt": "a", "n": 3}, headers={"x-api-key": "sesame"})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "n")
