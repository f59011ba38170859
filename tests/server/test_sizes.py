"""Prompts that are too long whatever their tokens are: refused before they are read."""

from __future__ import annotations

from typing import Any

import pytest
from served import ChatBytes, Running, engine_for

from gamaneh.server.server_options import ServerOptions

TOO_LONG = "context_length_exceeded"


class Unread(ChatBytes):
    """Reads no text that is longer than the context."""

    def encode(self, text: str, special: bool = True) -> list[int]:
        assert len(text) < 1000, "it was read all the same"
        return super().encode(text, special)


@pytest.fixture
def running(start) -> Running:
    made: Running = start(engine_for(), ServerOptions(max_prompt_tokens=100), tokenizer=Unread())
    return made


@pytest.mark.parametrize(
    ("path", "body", "param", "code"),
    [
        ("/v1/completions", {"prompt": "x" * 100_000}, "prompt", TOO_LONG),
        ("/v1/completions", {"prompt": ["a", "x" * 100_000]}, "prompt", TOO_LONG),
        ("/v1/completions", {"prompt": "x" * 70_000}, "prompt", TOO_LONG),
        (
            "/v1/completions",
            {"prompt": "a", "prediction": {"type": "content", "content": "x" * 90_000}},
            "prediction",
            TOO_LONG,
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "x" * 50_000}] * 2},
            "messages",
            TOO_LONG,
        ),
    ],
)
def test_they_are_not_read(running: Running, path: str, body: dict[str, Any], param: str, code: str | None) -> None:
    error = running.refusal(path, **body)
    assert (error["param"], error["code"]) == (param, code)
