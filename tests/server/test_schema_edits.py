"""Schemas of requests: closed where they do not say otherwise, and moved into others by their structure."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel
from served import VOCAB, engine_for, saying
from test_chat import PROMPT

from gamaneh.server.schema_edits import closed, moved
from gamaneh.testing import hashed

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
CLOSED = {**NAME, "additionalProperties": False}


class Pet(BaseModel):
    name: str


class Owner(BaseModel):
    pet: Pet
    others: list[Pet] = []


class TestClosed:
    @pytest.mark.parametrize(
        ("schema", "expected"),
        [
            (NAME, CLOSED),
            ({"type": "array", "items": NAME}, {"type": "array", "items": CLOSED}),
            ({"anyOf": [NAME, {"type": "null"}]}, {"anyOf": [CLOSED, {"type": "null"}]}),
            ({"$ref": "#/$defs/n", "$defs": {"n": NAME}}, {"$ref": "#/$defs/n", "$defs": {"n": CLOSED}}),
            ({"allOf": [NAME]}, {"allOf": [CLOSED]}),
        ],
    )
    def test_objects_have_the_named_properties_alone(self, schema: Any, expected: Any) -> None:
        assert closed(schema) == expected

    @pytest.mark.parametrize(
        "schema",
        [
            {**NAME, "additionalProperties": True},
            {**NAME, "additionalProperties": {"type": "integer"}},
            {**NAME, "patternProperties": {"^x": {}}},
            {"type": "object"},
            {"allOf": [NAME, {"type": "object", "properties": {"age": {"type": "integer"}}}]},
            {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "$defs": {"a": NAME, "b": NAME}},
            {"const": NAME},
            {"enum": [NAME]},
            {"type": "object", "additionalProperties": False, "properties": {"a": {"default": NAME}}},
            True,
        ],
    )
    def test_what_a_schema_opens_stays_open(self, schema: Any) -> None:
        assert closed(schema) == schema

    def test_unknown_formats_are_annotations(self) -> None:
        assert closed({"type": "string", "format": "regex"}) == {"type": "string"}
        assert closed({"type": "string", "format": "date"}) == {"type": "string", "format": "date"}


class TestMoved:
    def test_references_lead_to_the_same_parts(self) -> None:
        schema = {"$id": "https://x/y", "properties": {"a": {"$ref": "#/$defs/n"}}, "$defs": {"n": NAME}}
        made = moved(schema, "#/anyOf/0")
        assert made["properties"]["a"] == {"$ref": "#/anyOf/0/$defs/n"}
        assert "$id" not in made

    def test_anchors_are_found(self) -> None:
        schema = {"properties": {"a": {"$ref": "#pet"}}, "$defs": {"n/m": {**NAME, "$anchor": "pet"}}}
        assert moved(schema, "#/x")["properties"]["a"] == {"$ref": "#/x/$defs/n~1m"}

    @pytest.mark.parametrize("key", ["const", "default"])
    def test_values_are_left_alone(self, key: str) -> None:
        schema = {"properties": {"a": {key: {"$ref": "#/$defs/n"}}}}
        assert moved(schema, "#/x") == schema


@pytest.mark.parametrize("seed", range(3))
def test_an_answer_has_no_keys_that_its_schema_does_not_name(start, seed: int) -> None:
    running = start(engine_for(hashed(VOCAB), max_context=4096, num_blocks=2048))
    wanted = {"type": "json_schema", "json_schema": {"name": "o", "schema": Owner.model_json_schema()}}
    choice = running.chat("hello", temperature=1, seed=seed, response_format=wanted, max_tokens=3000)["choices"][0]
    if choice["finish_reason"] == "stop":
        assert Owner.model_validate_json(choice["message"]["content"]).model_extra is None
        assert set(json.loads(choice["message"]["content"])) <= {"pet", "others"}


def test_invented_arguments_cannot_be_called_with(start) -> None:
    call = '<tool_call>\n{"name": "f", "arguments": {"invented": 1, "name": "x"}}\n</tool_call>'
    running = start(engine_for(saying(call, PROMPT), max_context=1024, num_blocks=1024))
    tools = [{"type": "function", "function": {"name": "f", "parameters": {**NAME, "$id": "https://x/y"}}}]
    message = running.chat("hello", temperature=0, tools=tools, tool_choice="required", max_tokens=200)["choices"][0][
        "message"
    ]
    assert "invented" not in message["tool_calls"][0]["function"]["arguments"]


def test_parameters_that_are_no_object_are_refused(server) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}]
    error = server.refusal("/v1/chat/completions", messages=[{"role": "user", "content": "x"}], tools=tools)
    assert error["param"] == "tools.0.function.parameters"
