"""What real clients send: own answers come back, harmless fields are harmless, null is a field that is not there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from openai import OpenAI
from served import MODEL, VOCAB, Running, engine_for, saying, streamed
from test_chat import CALLS, PROMPT, TOOLS, Reasoner

from gamaneh.server.server_options import ServerOptions
from gamaneh.testing import hashed

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "hello"}]
FEW: dict[str, Any] = {"max_tokens": 4, "temperature": 0}


def client_of(running: Running) -> OpenAI:
    return OpenAI(base_url=f"{running.url}/v1", api_key="unused", timeout=30, max_retries=0)


class TestOwnAnswers:
    """`messages.append(reply.choices[0].message.model_dump())` works for every kind of answer."""

    @pytest.mark.parametrize(
        ("text", "fields"),
        [
            ("a rose", {}),
            (CALLS, {"tools": TOOLS}),
            (CALLS, {"tools": TOOLS, "max_tokens": 45}),
            ('<tool_call>{"name": "f", "arguments": {"x": [1,}}</tool_call>', {"tools": TOOLS}),
            ("", {}),
        ],
        ids=["text", "calls", "call cut by length", "broken call", "nothing"],
    )
    @pytest.mark.parametrize("nulls", [True, False])
    def test_they_are_taken_back(self, start, text: str, fields: dict[str, Any], nulls: bool) -> None:
        running = start(engine_for(saying(text, PROMPT), max_context=1024, num_blocks=512))
        client = client_of(running)
        reply = client.chat.completions.create(model=MODEL, messages=USER, temperature=0, **fields).choices[0].message
        history = [*USER, reply.model_dump(exclude_none=not nulls)]
        history += [{"role": "tool", "tool_call_id": call.id, "content": "2"} for call in reply.tool_calls or ()]
        assert client.chat.completions.create(
            model=MODEL, messages=[*history, *USER], **FEW, **({"tools": TOOLS} if fields else {})
        )

    def test_reasoning_is_taken_back(self, start) -> None:
        running = start(engine_for(saying("hm</think>5", "hello<think>\n")), tokenizer=Reasoner())
        client = client_of(running)
        reply = client.chat.completions.create(model=MODEL, messages=USER, temperature=0).choices[0].message
        assert reply.model_extra["reasoning_content"] == "hm"
        assert client.chat.completions.create(model=MODEL, messages=[*USER, reply.model_dump()], **FEW)

    def test_what_the_streaming_helper_collects_is_taken_back(self, start) -> None:
        running = start(engine_for(saying(CALLS, PROMPT), max_context=1024, num_blocks=512))
        client = client_of(running)
        with client.chat.completions.stream(model=MODEL, messages=USER, temperature=0, tools=TOOLS) as stream:
            message = stream.get_final_completion().choices[0].message
        assert "index" in message.model_dump()["tool_calls"][0]
        assert client.chat.completions.create(model=MODEL, messages=[*USER, message.model_dump()], **FEW, tools=TOOLS)


HARMLESS: dict[str, Any] = {
    "store": True,
    "metadata": {"run": "1"},
    "service_tier": "auto",
    "safety_identifier": "x",
    "prompt_cache_key": "x",
    "verbosity": "low",
    "modalities": ["text"],
    "best_of": 1,
    "suffix": None,
    "top_k": -1,
    "use_beam_search": False,
    "skip_special_tokens": True,
    "length_penalty": 1.0,
    "logit_bias": {},
    "stop": None,
    "ignore_eos": True,
    "include_stop_str_in_output": False,
}


@pytest.mark.parametrize("name", HARMLESS)
def test_a_field_that_changes_nothing_changes_nothing(server: Running, name: str) -> None:
    fields = {**FEW, "ignore_eos": True}
    plain = server.complete(**fields)["choices"]
    assert server.complete(**{**fields, name: HARMLESS[name]})["choices"] == plain
    assert server.chat(**{**fields, name: HARMLESS[name]})["choices"] == server.chat(**fields)["choices"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"functions": None, "function_call": None, "reasoning_effort": "low", "chat_template_kwargs": {"a": 1}}),
        (CHAT, {"functions": [], "top_logprobs": 0, "logprobs": False, "parallel_tool_calls": True, "tools": []}),
        (CHAT, {"tools": None, "tool_choice": "auto"}),
        (CHAT, {"tools": [], "tool_choice": "none", "response_format": None}),
        ("/v1/completions", {"max_completion_tokens": 4, "logprobs": None, "echo": None, "stream_options": None}),
    ],
)
def test_what_asks_for_nothing_is_taken(server: Running, path: str, fields: dict[str, Any]) -> None:
    prompt = {"messages": USER} if path == CHAT else {"prompt": "hello"}
    assert server.post(path, **prompt, **{**FEW, **fields})["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": "hello", "id": "m1", "metadata": {"a": 1}, "name": None, "tool_calls": None},
        {
            "role": "assistant",
            "content": None,
            "refusal": "no",
            "annotations": [],
            "audio": None,
            "function_call": None,
        },
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"role": "assistant", "content": "5", "reasoning": "hm"},
        {
            "role": "assistant",
            "tool_calls": [
                {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
            ],
        },
    ],
)
def test_messages_of_other_clients_are_taken(server: Running, message: dict[str, Any]) -> None:
    assert server.post(CHAT, messages=[message, *USER], **FEW)["choices"]


def test_null_is_absence_at_every_depth(server: Running) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "integer"}, "strict": None}}
    tool = {"type": "function", "function": {"name": "f", "parameters": None, "strict": None, "description": None}}
    server.post(CHAT, messages=USER, **FEW, response_format=wanted, speculation={"proposer": None, "metrics": None})
    server.post(CHAT, messages=USER, **FEW, tools=[tool], tool_choice=None, prediction=None)
    streamed(server, CHAT, messages=USER, **FEW, stream_options={"include_usage": None, "include_obfuscation": None})


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"best_of": 3}, "best_of"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"skip_special_tokens": False}, "skip_special_tokens"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"length_penalty": 2}, "length_penalty"),
        ({"suffix": "x"}, "suffix"),
    ],
)
def test_what_would_change_the_text_is_refused_by_name(server: Running, fields: dict[str, Any], param: str) -> None:
    assert server.refusal(prompt="a", **fields)["param"] == param


class TestNamesInErrors:
    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({"max-tokens": 4}, "max-tokens"),
            ({"stream": True, "stream_options": {"include-usage": True}}, "stream_options.include-usage"),
            ({"messages": [{"role": "user", "content": "x", "x-y": 1}]}, "messages.0.x-y"),
            ({"tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name"),
            ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools.0.type"),
            ({"tools": [TOOLS[0], TOOLS[0]]}, "tools.1.function.name"),
            ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools.0.function.name"),
            ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "h"}}}, "tool_choice"),
        ],
    )
    def test_a_field_is_named_as_it_was_written(self, server: Running, body: dict[str, Any], param: str) -> None:
        error = server.refusal(CHAT, **{"messages": USER, **body})
        assert error["param"] == param
        assert not any(word in error["message"] for word in ("NamedTool", "validation", "{'", "List should"))

    def test_long_values_and_names_are_cut(self, server: Running) -> None:
        for body in ({"x" * 9000: 1}, {"temperature": ["y" * 9000]}, {"model": "z" * 9000}):
            response = server.http.post("/v1/completions", json={"prompt": "a", **body})
            assert response.status_code in (400, 404)
            assert len(response.text) < 700


class TestUnknownFields:
    def test_they_are_refused_by_default(self, server: Running) -> None:
        assert server.refusal(prompt="a", nonsense=1)["code"] == "unknown_field"

    def test_an_operator_may_have_them_passed_over_and_logged(self, start, caplog: pytest.LogCaptureFixture) -> None:
        running = start(engine_for(), ServerOptions(unknown_fields="warn"))
        with caplog.at_level("INFO", "gamaneh.server"):
            plain = running.complete(**FEW)
            assert running.complete(nonsense=1, **FEW)["choices"] == plain["choices"]
            running.chat(nonsense={"a": 1}, **FEW)
        noted = [getattr(record, "fields", {}).get("unknown_fields") for record in caplog.records]
        assert ["nonsense"] in noted


def test_usage_may_come_with_every_chunk(server: Running) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = streamed(server, "/v1/completions", prompt="hello", max_tokens=12, ignore_eos=True, stream_options=options)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == 12 and len(counts) > 2


class TestToolChoices:
    def test_some_of_the_tools_may_be_allowed(self, start) -> None:
        running = start(engine_for(hashed(VOCAB), max_context=1024, num_blocks=1024))
        allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "g"}}]}
        choice = {"type": "allowed_tools", "allowed_tools": allowed}
        message = running.chat("hello", tools=TOOLS, tool_choice=choice, temperature=1, seed=3)["choices"][0]["message"]
        assert {call["function"]["name"] for call in message["tool_calls"]} == {"g"}

    def test_a_stop_text_does_not_cut_a_forced_call(self, start) -> None:
        running = start(engine_for(hashed(VOCAB), max_context=1024, num_blocks=1024))
        asked = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "temperature": 1, "seed": 3}
        free, stopped = (
            running.chat("hello", **asked, **stop)["choices"][0]
            for stop in ({}, {"stop": ["arg", '"'], "stop_token_ids": [123]})
        )
        names = [[call["function"] for call in choice["message"]["tool_calls"]] for choice in (free, stopped)]
        assert names[0] == names[1]
        assert free["finish_reason"] == stopped["finish_reason"] == "tool_calls"

    @pytest.mark.parametrize(
        "arguments",
        [
            '{"a": 1,}',
            '{"a": "x\ny"}',
            '{"a": True}',
            '{"a": NaN}',
            '{"a": 01}',
            '{"a" 1}',
            "{a: 1}",
            '{"a": .5}',
            '{"a": "\\x"}',
        ],
    )
    def test_a_broken_call_is_never_announced_as_done(self, start, arguments: str) -> None:
        text = f'<tool_call>{{"name": "f", "arguments": {arguments}}}</tool_call>'
        choice = start(engine_for(saying(text, PROMPT))).chat("hello", tools=TOOLS, temperature=0)["choices"][0]
        call = choice["message"]["tool_calls"][0]["function"]["arguments"]
        assert choice["finish_reason"] == "stop"
        assert arguments.startswith(call) and call != arguments
        assert choice["message"]["content"].startswith(arguments[len(call) :])

    @pytest.mark.parametrize(
        ("end", "reason"),
        [({"stop": "x"}, "stop"), ({"max_tokens": 40}, "length"), ({"stop_token_ids": [120]}, "stop")],
    )
    def test_a_call_that_was_only_begun_is_not_either(self, start, end: dict[str, Any], reason: str) -> None:
        text = '<tool_call>{"name": "f", "arguments": {"a": "x"}}</tool_call>'
        choice = start(engine_for(saying(text, PROMPT))).chat("hello", tools=TOOLS, temperature=0, **end)["choices"][0]
        assert choice["finish_reason"] == reason

    def test_without_tools_auto_is_no_tools(self, start) -> None:
        running = start(engine_for(saying(CALLS, PROMPT)))
        assert running.chat("hello", temperature=0, tool_choice="auto")["choices"][0]["message"]["content"] == CALLS


class Toolless(Reasoner):
    """A template that has no place for tools, and shows all it was given."""

    reasons = False
    takes_tools = False

    def chat(self, messages: Sequence[Mapping[str, Any]], tools: object = None, **variables: Any) -> list[int]:
        assert tools is None
        self.seen = messages
        return self.encode("hello")


def test_tools_stand_in_the_system_turn_where_the_template_has_no_place(start) -> None:
    tokenizer = Toolless()
    running = start(engine_for(saying(CALLS, "hello")), tokenizer=tokenizer)
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    history = [
        {"role": "system", "content": "Be brief."},
        *USER,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "2"},
    ]
    choice = running.post(CHAT, messages=history, tools=TOOLS, temperature=0)["choices"][0]
    system, _, called, answered = tokenizer.seen
    assert system["content"].startswith("Be brief.") and '"name": "f"' in system["content"]
    assert called["content"] == '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
    assert (answered["role"], "2" in answered["content"]) == ("user", True)
    assert choice["finish_reason"] == "tool_calls"
    assert json.loads(choice["message"]["tool_calls"][0]["function"]["arguments"]) == {"x": 1}
