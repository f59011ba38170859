"""Scenarios through the HTTP door: the server's application in this process."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import golden_adapter as door
import httpx

from gamaneh import Engine
from gamaneh.testing import BYTE_VOCAB, EOS_ID, fixed_output, hashed

Scenario = Callable[[], Any]
SCENARIOS: dict[str, dict[str, Scenario]] = {"http": {}}

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}

TIMED = re.compile(r"seconds|^id$|^created$|^running$|^waiting$|speedup")
"""Keys whose values differ from run to run."""

COUNTED = re.compile(
    r"gamaneh_(spec_decode|draft_tokens|accepted_tokens|round_tokens|decisions|responses|requests|tokens|prompt|prefix)"
)
"""Series that depend on nothing but the requests; `_created`, seconds and whatever a batch decides are left out."""


def scripted() -> Engine:
    return door.scripted(hashed(BYTE_VOCAB), BYTE_VOCAB, draft_length=4)


def saying(text: str, prompt_len: int) -> Engine:
    """Answers a prompt of this length with this text."""
    script = fixed_output([*text.encode(), EOS_ID], BYTE_VOCAB, prompt_len)
    return door.scripted(script, BYTE_VOCAB, draft_length=4, accuracy=1.0)


def tiny() -> Engine:
    return door.engine_of(door.tiny_llm(proposer="lookup", draft_length=4))


def scenario(name: str) -> Callable[[Scenario], Scenario]:
    def keep(function: Scenario) -> Scenario:
        SCENARIOS["http"][name] = function
        return function

    return keep


def cleaned(value: Any) -> Any:
    """A body without what differs from run to run."""
    if isinstance(value, Mapping):
        return {key: cleaned(entry) for key, entry in value.items() if not TIMED.search(key)}
    return [cleaned(entry) for entry in value] if isinstance(value, list) else value


def asked(engine: Engine, requests: Mapping[str, tuple[str, Mapping[str, Any]]], **options: Any) -> dict[str, Any]:
    """Status and body of each request, one after the other."""

    async def ask() -> dict[str, Any]:
        async with door.http(engine, **options) as client:
            return {name: told(await client.post(path, json=body)) for name, (path, body) in requests.items()}

    return asyncio.run(ask())


def told(response: httpx.Response) -> Any:
    """Status and body; streams as the list of their events."""
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        lines = [line.removeprefix("data: ") for line in response.text.split("\n") if line]
        return [line if line == "[DONE]" else cleaned(json.loads(line)) for line in lines]
    body = cleaned(response.json())
    return body if response.status_code == 200 else {"status": response.status_code, **body}


def completions(**bodies: Mapping[str, Any]) -> dict[str, tuple[str, Mapping[str, Any]]]:
    return {
        name: (COMPLETIONS, {"prompt": "hello", "max_tokens": 8, "temperature": 0, **body})
        for name, body in bodies.items()
    }


def chats(**bodies: Mapping[str, Any]) -> dict[str, tuple[str, Mapping[str, Any]]]:
    return {
        name: (CHAT, {"messages": USER, "max_tokens": 8, "temperature": 0, **body}) for name, body in bodies.items()
    }


SAMPLING: dict[str, Mapping[str, Any]] = {
    "defaults": {},
    "seeded": {"temperature": 1.0, "seed": 5},
    "filters": {"temperature": 1.2, "seed": 5, "top_k": 30, "top_p": 0.9, "min_p": 0.01},
    "penalties": {"presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
    "bias": {"logit_bias": {"65": 100.0}},
    "bad_words": {"bad_words": ["A"], "logit_bias": {"65": 100.0}},
    "stop_token_ids": {"stop_token_ids": list(range(128)), "min_tokens": 2},
    "salt_and_priority": {"cache_salt": "s", "priority": 3, "user": "u"},
    "plain": {"speculation": {"enabled": False}},
    "length": {"speculation": {"draft_length": 2}},
}


@scenario("sampling parameters")
def _sampling() -> Any:
    return asked(tiny(), completions(**SAMPLING))


@scenario("completions: logprobs, echo, several prompts and answers")
def _completions() -> Any:
    return asked(
        tiny(),
        completions(
            logprobs={"max_tokens": 3, "logprobs": 2},
            echo={"max_tokens": 2, "echo": True},
            echo_logprobs={"prompt": "hey", "max_tokens": 1, "echo": True, "logprobs": 1},
            token_prompt={"prompt": [104, 101, 121]},
            prompts={"prompt": ["abc", "xyz"], "n": 2, "temperature": 1.0, "seed": 7, "max_tokens": 4},
            no_tokens={"max_tokens": 0, "echo": True},
        ),
    )


@scenario("stop texts and ends")
def _stops() -> Any:
    text = "Hello, world é! again"
    bodies = {
        "eos": {"max_tokens": 64},
        "stop": {"stop": "wor", "max_tokens": 64},
        "stops": {"stop": ["zzz", "é"], "max_tokens": 64, "logprobs": 0},
        "length": {"max_tokens": 5},
        "streamed": {"stop": "wor", "max_tokens": 64, "stream": True, "stream_options": {"include_usage": True}},
    }
    return asked(saying(text, 5), completions(**bodies))


@scenario("chat")
def _chat() -> Any:
    engine = saying("Hi there.", len(b"user: hello\n"))
    return asked(
        engine,
        chats(
            whole={"max_tokens": 64},
            logprobs={"max_tokens": 2, "logprobs": True, "top_logprobs": 2},
            parts={"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}], "max_tokens": 3},
            streamed={"max_tokens": 64, "stream": True, "stream_options": {"include_usage": True}},
            several={"n": 2, "max_completion_tokens": 4, "max_tokens": None},
        ),
    )


@scenario("chat: JSON and tools")
def _json() -> Any:
    schema = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
    called = saying('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', len(b"user: hello\n"))
    bias = {str(ord(blank)): -100.0 for blank in " \n\r\t"}
    return {
        **asked(tiny(), chats(schema={"response_format": schema, "max_tokens": 40, "logit_bias": bias})),
        **asked(called, chats(call={"tools": tools, "max_tokens": 100})),
    }


@scenario("speculation: metrics and tokens")
def _speculation() -> Any:
    shown = {"metrics": True, "tokens": True}
    return asked(
        tiny(),
        completions(
            plain={"speculation": {"enabled": False, **shown}},
            lookup={"prompt": "abcabcabcabc", "speculation": shown},
            prediction={"prediction": {"type": "content", "content": "hello hello"}, "speculation": {"metrics": True}},
        ),
    )


@scenario("a prediction that is right")
def _prediction() -> Any:
    text = "The quick brown fox jumps."
    script = fixed_output([*text.encode(), EOS_ID], BYTE_VOCAB, 5)
    engine = door.scripted(script, BYTE_VOCAB, draft_length=4, accuracy=0.7)
    return asked(engine, completions(right={"prediction": {"type": "content", "content": text}, "max_tokens": 64}))


@scenario("what the server says of itself")
def _telling() -> Any:
    async def ask() -> dict[str, Any]:
        async with door.http(tiny()) as client:
            for body in (
                {"temperature": 0},
                {"n": 2, "temperature": 1.0, "seed": 3},
                {"temperature": -1},
                {"prompt": "abcabcabcabc", "seed": 1},
            ):
                await client.post(COMPLETIONS, json={"prompt": "hello", "max_tokens": 8, **body})
            pages = {path: told(await client.get(path)) for path in ("/v1/models", "/v1/models/golden", "/v1/models/x")}
            pages |= {path: told(await client.get(path)) for path in ("/health", "/ready", "/absent")}
            metrics = (await client.get("/metrics")).text
        lines = [line for line in metrics.splitlines() if COUNTED.match(line) and not TIMED.search(line)]
        return {**pages, "/metrics": sorted(line for line in lines if "_created" not in line)}

    return asyncio.run(ask())


REFUSED: dict[str, Mapping[str, Any]] = {
    "k": {"k": -1},
    "speculation.lenght": {"speculation": {"lenght": 3}},
    "speculation.proposer": {"speculation": {"proposer": "luck"}},
    "speculation.rule": {"speculation": {"rule": "luck"}},
    "speculation.draft_length": {"speculation": {"draft_length": 200}},
    "temperature": {"temperature": "hot"},
    "temperature, negative": {"temperature": -0.5},
    "top_p": {"top_p": 0},
    "n": {"n": 0},
    "n, too many": {"n": 99},
    "max_tokens": {"max_tokens": -1},
    "min_tokens": {"min_tokens": 9, "max_tokens": 5},
    "logit_bias": {"logit_bias": {"1": "much"}},
    "logit_bias, no token": {"logit_bias": {"300": 1.0}},
    "seed": {"seed": 2**64},
    "stop": {"stop": ""},
    "stop_token_ids": {"stop_token_ids": [260]},
    "stream": {"stream": "yes"},
    "prediction": {"prediction": {"type": "image"}},
    "prompt, empty": {"prompt": ""},
    "prompt, too long": {"prompt": "x" * 2000},
    "prompt, no tokens": {"prompt": [300]},
    "seed, not kept": {"temperature": 1, "seed": 3, "speculation": {"rule": "block", "draft_length": "adaptive"}},
    "model": {"model": "another"},
    "logprobs": {"logprobs": 50},
}


@scenario("refusals: completions")
def _refused() -> Any:
    return asked(tiny(), completions(**REFUSED))


@scenario("refusals: chat")
def _refused_chat() -> Any:
    return asked(
        tiny(),
        chats(
            messages={"messages": []},
            role={"messages": [{"role": "nobody", "content": "x"}]},
            content={"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            schema={"response_format": {"type": "json_schema"}},
            top_logprobs={"top_logprobs": 3},
            tools={"tool_choice": "required"},
        ),
    )


@scenario("refusals: access, limits and bodies")
def _limits() -> Any:
    async def ask() -> dict[str, Any]:
        async with door.http(tiny(), max_prompt_tokens=8, max_body_bytes=200) as client:
            return {
                "no JSON": told(await client.post(COMPLETIONS, content=b"{")),
                "too large": told(await client.post(COMPLETIONS, content=b"x" * 300)),
                "prompt": told(await client.post(COMPLETIONS, json={"prompt": "more than eight"})),
                "method": (await client.get(COMPLETIONS)).status_code,
            }

    return asyncio.run(ask())
