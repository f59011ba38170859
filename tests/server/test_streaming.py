"""Streams: the same as what comes at once, whole to the last character, and well-formed to the last event."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from served import Running, engine_for, saying, streamed

from gamaneh.server.server_options import ServerOptions
from gamaneh.testing import ScriptedRunner, fixed_output, hashed

PROMPT = "hello"
TEXTS = ["x", "xy", "a b\n\nc", "forty letters and some more of them, twice"]


class TestEndOfTheStream:
    """CASES kind 17: the end falls at each place in a block of accepted tokens."""

    @pytest.mark.parametrize("k", [2, 5, 8])
    @pytest.mark.parametrize("text", TEXTS)
    def test_nothing_is_lost(self, start, text: str, k: int) -> None:
        running = start(engine_for(saying(text, PROMPT), k=k, accuracy=1.0))
        endings: list[dict[str, Any]] = [
            {},
            {"stop": ["\n\n\n"]},
            {"max_tokens": max(1, len(text) - 1)},
            {"stop": text[-1]},
        ]
        for ending in endings:
            asked = {"prompt": PROMPT, "temperature": 0, **ending}
            whole = running.complete(**asked)
            chunks = streamed(running, "/v1/completions", **asked, stream_options={"include_usage": True})
            choices = [choice for chunk in chunks for choice in chunk["choices"]]
            assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
            assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)
            assert choices[-1]["finish_reason"] == whole["choices"][0]["finish_reason"]
            assert chunks[-1]["choices"] == []
            assert chunks[-1]["usage"] | {"prompt_tokens_details": 0} == whole["usage"] | {"prompt_tokens_details": 0}
            assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)

    def test_without_usage_the_last_chunk_has_the_finish_reason(self, server: Running) -> None:
        chunks = streamed(server, "/v1/completions", prompt=PROMPT, max_tokens=5, ignore_eos=True)
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        assert "usage" not in chunks[-1]


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("extra", [{}, {"logprobs": True, "top_logprobs": 2}])
def test_joined_deltas_are_the_answer_that_comes_at_once(server: Running, n: int, extra: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "hello"}]
    asked = {"messages": messages, "max_tokens": 40, "seed": 7, "n": n, "ignore_eos": True, **extra}
    whole = server.post("/v1/chat/completions", **asked)
    choices = [choice for chunk in streamed(server, "/v1/chat/completions", **asked) for choice in chunk["choices"]]
    for expected in whole["choices"]:
        own = [choice for choice in choices if choice["index"] == expected["index"]]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(choice["delta"].get("content", "") for choice in own) == expected["message"]["content"]
        assert own[-1]["finish_reason"] == expected["finish_reason"]
        logprobs = [entry for choice in own if choice["logprobs"] for entry in choice["logprobs"]["content"]]
        assert logprobs == (expected["logprobs"] or {"content": []})["content"]


def test_characters_are_never_cut(start) -> None:
    text = "سلام 👋 دنیا"
    running = start(engine_for(saying(text, PROMPT), k=3, accuracy=1.0))
    pieces = [
        chunk["choices"][0]["text"] for chunk in streamed(running, "/v1/completions", prompt=PROMPT, temperature=0)
    ]
    assert "".join(pieces) == text
    assert len(pieces) > 3 and not any("\ufffd" in piece for piece in pieces)


def test_a_stream_is_server_sent_events(server: Running) -> None:
    response = server.http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 3, "stream": True})
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    lines = response.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    assert all(json.loads(line.removeprefix("data: "))["object"] == "text_completion" for line in lines[:-2])


def test_usage_is_asked_for_with_a_stream_only(server: Running) -> None:
    assert server.refusal(prompt="a", stream_options={"include_usage": True})["param"] == "stream_options"


class TestErrors:
    def test_before_the_first_event_they_are_responses(self, server: Running) -> None:
        assert server.refusal(prompt=[999], stream=True)["param"] == "prompt"

    def test_in_a_stream_that_has_begun_they_are_an_event_and_the_stream_ends(self, start) -> None:
        def script(history: list[int]) -> Any:
            return fixed_output([97], 260, 0)(history) * (float("nan") if len(history) > 30 else 1.0)

        running = start(engine_for(script, k=None, accuracy=0.0, runner=ScriptedRunner(script, 260)))
        asked = {"prompt": PROMPT, "temperature": 1, "stream": True, "speculation": {"enabled": False}}
        response = running.http.post("/v1/completions", json=asked)
        *events, last, nothing = response.text.split("\n\n")
        assert (response.status_code, nothing) == (200, "")
        assert len(events) == 26
        name, data = last.split("\n")
        assert name == "event: error"
        assert json.loads(data.removeprefix("data: "))["error"]["code"] == "generation_failed"
        assert running.blocks_in_use() == 0

    def test_at_once_they_are_a_response_and_the_next_request_is_served(self, start) -> None:
        def script(history: list[int]) -> Any:
            return hashed(260)(history) * (float("nan") if 7 in history else 1.0)

        running = start(engine_for(script, accuracy=0.0))
        assert running.refusal(status=500, prompt=[7], temperature=1)["type"] == "server_error"
        assert running.complete([8], max_tokens=3, ignore_eos=True)["usage"]["completion_tokens"] == 3

    def test_a_request_that_takes_too_long_is_ended(self, start) -> None:
        running = start(engine_for(runner=SlowRunner(hashed(260), 260)), ServerOptions(request_seconds=0.2))
        error = running.refusal(status=408, prompt=PROMPT, ignore_eos=True)
        assert error["code"] == "request_timeout"
        assert running.blocks_in_use() == 0


class SlowRunner(ScriptedRunner):
    """Takes a moment for each forward."""

    def forward(self, feeds, *, taps=(), num_layers=None):
        time.sleep(0.05)
        return super().forward(feeds, taps=taps)


class TestTokens:
    def test_each_has_its_origin_and_their_texts_are_the_answer(self, start) -> None:
        text = "سلام، a quick fox 👋"
        running = start(engine_for(saying(text, PROMPT), accuracy=0.6))
        asked = {"prompt": PROMPT, "temperature": 0, "speculation": {"tokens": True, "metrics": True}}
        told = running.complete(**asked)["gamaneh"]
        chunks = streamed(running, "/v1/completions", **asked)
        entries = [entry for chunk in chunks for entry in chunk.get("gamaneh", {}).get("tokens", [])]
        assert entries == told["tokens"]
        assert "".join(entry["text"] for entry in entries) == text
        counts = told["speculation"]["tokens_by_origin"]
        assert counts == {origin: sum(e["origin"] == origin for e in entries) for origin in counts}
        assert any(entry["refused"] for entry in entries if entry["origin"] == "correction")
        assert chunks[-1]["gamaneh"]["speculation"]["drafts"] == told["speculation"]["drafts"]

    def test_they_are_told_of_one_answer_only(self, server: Running) -> None:
        assert server.refusal(prompt="a", n=2, speculation={"tokens": True})["param"] == "speculation.tokens"
