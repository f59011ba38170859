"""What a chat's answer has to look like: grammars for JSON, and for calls of tools that the model cannot avoid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gamaneh.errors import InvalidRequest
from gamaneh.sampling.grammar_mask import Frame, Grammar, Schema, SupportsBytes
from gamaneh.server.answer_parser import CALL, CALL_END, THINK_END
from gamaneh.server.api_errors import invalid
from gamaneh.server.schema_edits import closed, moved
from gamaneh.server.schemas import AllowedTools, ChatRequest, NamedTool, ResponseFormat, shown_value
from gamaneh.server.schemas import Tool as RequestTool

Tool = Mapping[str, Any]
ToolChoice = str | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools of one request.

    Args:
        offered: those that the model is told of.
        choice: `none`, `auto`, `required`, or the one to call.
        parallel: several calls are allowed.
    """

    offered: Sequence[Mapping[str, Any]]
    choice: str | Mapping[str, Any]
    parallel: bool

    @classmethod
    def of(cls, request: ChatRequest) -> Tools:
        """What a request says about tools.

        Raises:
            ApiError: 400, a choice without tools.
        """
        tools = [_offered(tool) for tool in request.tools or ()]
        for at, tool in enumerate(tools):
            kind, field = tool["function"]["parameters"].get("type", "object"), f"tools.{at}.function.parameters"
            if kind != "object":
                raise invalid(field, f"{field} must be the schema of an object, got the type {shown_value(kind)}")
        names = [tool["function"]["name"] for tool in tools]
        for at, name in enumerate(names):
            if name in names[:at]:
                raise invalid(f"tools.{at}.function.name", f"tools.{at}.function.name must be another's, got {name!r}")
        choice: ToolChoice = "auto"
        match request.tool_choice:
            case "none" | "auto" | "required" as word:
                choice = word
            case NamedTool() as named:
                choice = {"type": "function", "function": {"name": named.function.name}}
            case AllowedTools() as some:
                allowed = [tool.function.name for tool in some.allowed_tools.tools]
                _check_names(allowed, names, "tool_choice.allowed_tools.tools")
                tools = [tool for tool in tools if tool["function"]["name"] in allowed]
                choice = some.allowed_tools.mode
        if choice not in ("none", "auto") and not tools:
            wanted = choice if isinstance(choice, str) else choice["function"]["name"]
            raise invalid("tool_choice", f"tool_choice needs tools, got {wanted!r}")
        return cls([] if choice == "none" else tools, choice, request.parallel_tool_calls is not False)

    @property
    def forced(self) -> bool:
        """Whether the answer can only be calls."""
        return bool(self.offered) and self.choice != "auto"


def _offered(tool: RequestTool) -> Tool:
    """A tool as templates expect it: one without parameters takes none."""
    function = tool.function
    described = {} if function.description is None else {"description": function.description}
    parameters = function.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": {"name": function.name, **described, "parameters": parameters}}


def _check_names(wanted: Sequence[str], known: Sequence[str], field: str) -> None:
    for name in wanted:
        if name not in known:
            raise invalid(field, f"{field} must name some of {', '.join(known)}, got {name!r}")


def grammar_of(request: ChatRequest, tools: Tools, tokenizer: SupportsBytes, *, inside: bool) -> Grammar | None:
    """The grammar that the answer has to follow, if any; `inside` lets reasoning end first.

    Raises:
        ApiError: 400, the request asks for two things at once.
        InvalidRequest: there is no such grammar.
    """
    until = THINK_END if inside else None
    wanted = request.response_format
    if wanted is None or wanted.type == "text":
        return tool_grammar(tools.offered, tools.choice, tokenizer, parallel=tools.parallel, until=until)
    if tools.offered:
        raise invalid("response_format", f"response_format {wanted.type} cannot be asked for together with tools")
    return _json_grammar(wanted, tokenizer, Frame(until=until))


def _json_grammar(wanted: ResponseFormat, tokenizer: SupportsBytes, frame: Frame) -> Grammar:
    field = "response_format.json_schema"
    if wanted.type == "json_object":
        return Grammar.any_json(tokenizer, frame=frame)
    if wanted.json_schema is None:
        raise invalid(field, f"{field} is required with the type json_schema")
    return Grammar.from_json_schema(closed(wanted.json_schema.schema_), tokenizer, frame=frame, field=f"{field}.schema")


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
    frame = Frame(f"{CALL}\n", f"\n{CALL_END}", between="\n" if several else None, until=until)
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
    arguments = {"type": "object", **(function.get("parameters") or _NO_ARGUMENTS)}
    return {
        "type": "object",
        "properties": {
            "name": {"const": function["name"]},
            "arguments": moved(closed(arguments), f"{place}/properties/arguments"),
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }
