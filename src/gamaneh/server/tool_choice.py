"""Forced tool calls: a grammar that leaves the model no other answer than a call of a tool that it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gamaneh.errors import InvalidRequest
from gamaneh.sampling.grammar import Frame, Grammar, Schema, SupportsBytes
from gamaneh.server.tools import CLOSE, OPEN

Tool = Mapping[str, Any]
ToolChoice = str | Mapping[str, Any]

_NO_ARGUMENTS: Schema = {"type": "object", "properties": {}, "additionalProperties": False}


def tool_grammar(
    tools: Sequence[Tool],
    choice: ToolChoice,
    tokenizer: SupportsBytes,
    *,
    parallel: bool = True,
    until: str | None = None,
) -> Grammar | None:
    """The grammar of an answer that has to call a tool; None if it need not (`none`, `auto`).

    The answer consists of calls as the tool call parser reads them. Arguments fit the parameters of
    their tool.

    Args:
        tools: as in the request, with `type` and `function`.
        choice: `required` for any of the tools, or the one to call by name, as in the request.
        parallel: `required` may make several calls.
        until: anything may come first, up to and including this text (the end of reasoning).

    Raises:
        InvalidRequest: the tool to call is none of `tools`, or its parameters are no schema that a
            grammar can enforce.
    """
    if choice in ("none", "auto"):
        return None
    named = [tool["function"] for tool in tools]
    chosen = named if choice == "required" else _named(named, choice)
    several = parallel and choice == "required"
    frame = Frame(f"{OPEN}\n", f"\n{CLOSE}", between="\n" if several else None, until=until)
    return Grammar.from_json_schema(_any_call(chosen), tokenizer, frame=frame, field="tools")


def _named(functions: Sequence[Mapping[str, Any]], choice: ToolChoice) -> list[Mapping[str, Any]]:
    name = choice["function"]["name"] if isinstance(choice, Mapping) else choice
    chosen = [function for function in functions if function["name"] == name]
    if not chosen:
        known = ", ".join(str(function["name"]) for function in functions)
        raise InvalidRequest("tool_choice", f"must name one of {known}", name)
    return chosen[:1]


def _any_call(functions: Sequence[Mapping[str, Any]]) -> Schema:
    return {"anyOf": [_call(function, f"#/anyOf/{at}") for at, function in enumerate(functions)]}


def _call(function: Mapping[str, Any], place: str) -> Schema:
    arguments = function.get("parameters") or _NO_ARGUMENTS
    return {
        "type": "object",
        "properties": {
            "name": {"const": function["name"]},
            "arguments": _moved(arguments, f"{place}/properties/arguments"),
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _moved(schema: Any, place: str) -> Any:
    """A schema whose references still lead to its own parts when it stands at `place` in another."""
    if isinstance(schema, Mapping):
        return {key: _moved_reference(key, value, place) for key, value in schema.items()}
    return [_moved(part, place) for part in schema] if isinstance(schema, list) else schema


def _moved_reference(key: str, value: Any, place: str) -> Any:
    if key == "$ref" and isinstance(value, str) and value.startswith("#"):
        return place + value.removeprefix("#")
    return _moved(value, place)
