"""`/v1/chat/completions`: messages, tool calls, reasoning, structured output; streamed and not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from served import VOCAB, ChatBytes, Running, engine_for, saying, streamed

from gamaneh.proposers.grammar import GrammarProposer
from gamaneh.server.chat import template_messages
from gamaneh.server.schemas import ChatRequest, parse
from gamaneh.testing import hashed

PATH = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hello"}]
PROMPT = "user: hello\n"

CALLS = '<tool_call>{"name":"f","arguments":{"x":1}}</tool_call><tool_call>{"name":"g","arguments":{"y":2}}</tool_call>'
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "integer"}},
                "required": [key],
                "additionalProperties": False,
            },
        },
    }
    for name, key in (("f", "x"), ("g", "y"))
]


PAIR = {
    "type": "json_schema",
    "json_schema": {
        "name": "pair",
        "schema": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}


class Reasoner(ChatBytes):
    """Its template opens the reasoning."""

    reasons = True

    def chat(self, messages: Sequence[Mapping[str, Any]], tools: object = None) -> list[int]:
        return self.encode(f"{messages[0]['content']}<think>\n")


def merged(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client puts together."""
    message: dict[str, Any] = {}
    calls: dict[int, dict[str, str]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            for key, value in choice["delta"].items():
                if key != "tool_calls":
                    message[key] = message.get(key, "") + value
            for call in choice["delta"].get("tool_calls", ()):
                own = calls.setdefault(call["index"], {"name": call["function"].get("name", ""), "arguments": ""})
                own["arguments"] += call["function"]["arguments"]
    return message | ({"calls": [calls[at] for at in sorted(calls)]} if calls else {})


def test_the_answer_is_a_message(start) -> None:
    running = start(engine_for(saying("a rose", PROMPT)))
    answer = running.chat("hello", temperature=0)
    assert answer["object"] == "chat.completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "a rose", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]


class TestMessages:
    def _messages(self, *messages: dict[str, Any]) -> list[dict[str, Any]]:
        return template_messages(parse(ChatRequest, json.dumps({"messages": messages}).encode()).messages)

    def test_parts_of_text_are_joined(self) -> None:
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        assert self._messages({"role": "user", "content": parts}) == [{"role": "user", "content": "ab"}]

    def test_a_developer_is_the_system(self) -> None:
        assert self._messages({"role": "developer", "content": "x"})[0]["role"] == "system"

    def test_arguments_of_earlier_calls_stay_as_they_were_written(self) -> None:
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
        message, answer = self._messages(
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "2"},
        )
        assert message["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x": 1}'}
        assert answer == {"role": "tool", "content": "2", "tool_call_id": "c1"}


class TestToolCalls:
    """CASES kind 15: one accepted block may hold the end of one call and the beginning of the next."""

    @pytest.mark.parametrize("k", [1, 2, 3, 5, 8, 13, 15])
    def test_calls_are_whole_however_blocks_fall(self, start, k: int) -> None:
        running = start(engine_for(saying(CALLS, PROMPT), k=k, accuracy=1.0))
        asked = {"messages": MESSAGES, "tools": TOOLS, "temperature": 0}
        whole = running.post(PATH, **asked)["choices"][0]
        chunks = streamed(running, PATH, **asked)
        expected = [{"name": "f", "arguments": '{"x":1}'}, {"name": "g", "arguments": '{"y":2}'}]
        assert [call["function"] for call in whole["message"]["tool_calls"]] == expected
        assert (whole["message"]["content"], whole["finish_reason"]) == (None, "tool_calls")
        assert merged(chunks)["calls"] == expected
        reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
        assert [reason for reason in reasons if reason] == ["tool_calls"]

    def test_without_tools_the_text_is_left_alone(self, start) -> None:
        running = start(engine_for(saying(CALLS, PROMPT)))
        assert running.chat("hello", temperature=0)["choices"][0]["message"]["content"] == CALLS

    def test_with_the_choice_none_too(self, start) -> None:
        running = start(engine_for(saying(CALLS, PROMPT)))
        answer = running.chat("hello", temperature=0, tools=TOOLS, tool_choice="none")
        assert answer["choices"][0]["message"]["content"] == CALLS

    @pytest.mark.parametrize("stream", [False, True])
    def test_only_the_first_comes_when_they_must_not_be_parallel(self, start, stream: bool) -> None:
        running = start(engine_for(saying(CALLS, PROMPT)))
        asked = {"messages": MESSAGES, "tools": TOOLS, "temperature": 0, "parallel_tool_calls": False}
        if stream:
            names = [call["name"] for call in merged(streamed(running, PATH, **asked))["calls"]]
        else:
            calls = running.post(PATH, **asked)["choices"][0]["message"]["tool_calls"]
            names = [call["function"]["name"] for call in calls]
        assert names == ["f"]

    @pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "g"}}])
    def test_a_call_can_be_forced(self, start, choice: object) -> None:
        running = start(engine_for(hashed(VOCAB), max_context=1024, num_blocks=1024))
        asked = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
        answer = running.chat("hello", **asked, temperature=1, seed=3)
        calls = answer["choices"][0]["message"]["tool_calls"]
        assert {call["function"]["name"] for call in calls} <= ({"f", "g"} if choice == "required" else {"g"})
        assert calls and all(isinstance(json.loads(call["function"]["arguments"]), dict) for call in calls)

    def test_a_tool_that_is_not_there_cannot_be(self, server: Running) -> None:
        choice = {"type": "function", "function": {"name": "h"}}
        assert server.refusal(PATH, messages=MESSAGES, tools=TOOLS, tool_choice=choice)["param"] == "tool_choice"


class TestReasoning:
    TEXT = "let me think\n</think>\n\nan answer"

    @pytest.mark.parametrize("k", [1, 4, 9])
    def test_it_is_split_from_the_answer(self, start, k: int) -> None:
        script = saying(self.TEXT, "hello<think>\n")
        running = start(engine_for(script, k=k, accuracy=1.0), tokenizer=Reasoner())
        asked = {"messages": MESSAGES, "temperature": 0}
        message = running.post(PATH, **asked)["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("let me think", "an answer")
        parts = merged(streamed(running, PATH, **asked))
        assert (parts["reasoning_content"], parts["content"]) == ("let me think", "an answer")

    def test_a_model_that_has_none_is_left_alone(self, start) -> None:
        running = start(engine_for(saying("a</think>b", PROMPT)))
        assert running.chat("hello", temperature=0)["choices"][0]["message"]["content"] == "a</think>b"


class TestStructuredOutput:
    """CASES kind 21, through the API."""

    @pytest.mark.parametrize("k", [1, 8])
    def test_it_fits_the_schema_and_ends(self, start, k: int) -> None:
        running = start(engine_for(hashed(VOCAB), k=k, max_context=2048, num_blocks=2048))
        for seed in range(5):
            asked = {"temperature": 1, "seed": seed, "response_format": PAIR}
            choice = running.chat("hello", **asked)["choices"][0]
            value = json.loads(choice["message"]["content"])
            assert isinstance(value["a"], int) and value["b"] in ("x", "y")
            assert choice["finish_reason"] == "stop"
            plain = running.chat("hello", **asked, speculation={"enabled": False})["choices"][0]
            assert plain == choice

    def test_drafts_can_be_made_under_the_grammar(self, start) -> None:
        engine = engine_for(hashed(VOCAB), max_context=2048, num_blocks=2048)
        engine.register(GrammarProposer(ChatBytes()))
        running = start(engine)
        asked = {"temperature": 1, "seed": 3, "response_format": PAIR}
        made = running.chat("hello", **asked, speculation={"proposer": "grammar", "metrics": True})
        assert made["choices"] == running.chat("hello", **asked, speculation={"enabled": False})["choices"]
        assert made["gamaneh"]["speculation"]["accepted"] > 0

    def test_an_object_of_any_shape_parses(self, start) -> None:
        script = saying('{"k": [1, 2, {"z": null}]} and more', PROMPT)
        running = start(engine_for(script, accuracy=1.0))
        asked = {"messages": MESSAGES, "temperature": 0, "response_format": {"type": "json_object"}}
        assert json.loads(merged(streamed(running, PATH, **asked))["content"]) == {"k": [1, 2, {"z": None}]}

    def test_plain_text_is_no_restriction(self, start) -> None:
        running = start(engine_for(saying("a rose", PROMPT)))
        answer = running.chat("hello", temperature=0, response_format={"type": "text"})
        assert answer["choices"][0]["message"]["content"] == "a rose"

    @pytest.mark.parametrize("schema", [{"type": "nonsense"}, {"$ref": "#/nowhere"}])
    def test_a_schema_that_is_none_is_refused_and_named(self, server: Running, schema: dict[str, Any]) -> None:
        wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
        error = server.refusal(PATH, messages=MESSAGES, response_format=wanted)
        assert error["param"] == "response_format.json_schema.schema"

    def test_together_with_tools_it_is_refused(self, server: Running) -> None:
        wanted = {"type": "json_object"}
        error = server.refusal(PATH, messages=MESSAGES, response_format=wanted, tools=TOOLS)
        assert error["param"] == "response_format"


def test_logprobs_come_with_every_token_even_if_its_text_is_held_back(server: Running) -> None:
    asked = {"messages": MESSAGES, "max_tokens": 30, "seed": 1, "logprobs": True, "top_logprobs": 3, "ignore_eos": True}
    chunks = streamed(server, PATH, **asked, stop=["zzzz"])
    entries = [
        e for c in chunks for choice in c["choices"] if choice["logprobs"] for e in choice["logprobs"]["content"]
    ]
    assert len(entries) == 30
    assert all(len(entry["top_logprobs"]) == 3 for entry in entries)


def test_the_newer_name_of_the_limit_goes_first(server: Running) -> None:
    answer = server.chat(max_tokens=9, max_completion_tokens=4, ignore_eos=True)
    assert answer["usage"]["completion_tokens"] == 4


def test_a_conversation_without_room_for_an_answer_is_refused_with_the_limit(server: Running) -> None:
    error = server.refusal(PATH, messages=[{"role": "user", "content": "x" * 300}])
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
