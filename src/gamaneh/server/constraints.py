"""What a chat's answer has to look like: grammars for JSON and for calls of tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gamaneh.sampling.grammar import Frame, Grammar, SupportsBytes
from gamaneh.server.errors import invalid
from gamaneh.server.reasoning import CLOSE
from gamaneh.server.schemas import ChatRequest, ResponseFormat
from gamaneh.server.tool_choice import tool_grammar


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
        tools = [tool.model_dump(exclude_none=True) for tool in request.tools or ()]
        choice = request.tool_choice or ("auto" if tools else "none")
        if choice != "none" and not tools:
            raise invalid("tool_choice", f"tool_choice needs tools, got {choice!r}")
        named = choice if isinstance(choice, str) else choice.model_dump()
        return cls([] if named == "none" else tools, named, request.parallel_tool_calls is not False)


def grammar_of(request: ChatRequest, tools: Tools, tokenizer: SupportsBytes, *, inside: bool) -> Grammar | None:
    """The grammar that the answer has to follow, if any; `inside` lets reasoning end first.

    Raises:
        ApiError: 400, the request asks for two things at once.
        InvalidRequest: there is no such grammar.
    """
    until = CLOSE if inside else None
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
    return Grammar.from_json_schema(wanted.json_schema.schema_, tokenizer, frame=frame, field=f"{field}.schema")
