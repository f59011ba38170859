"""What requests may hold. Unknown fields are refused by name, wrong types are never bent into right ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from gamaneh.options import RULE_NAMES
from gamaneh.server.api_errors import ApiError, invalid

MAX_LOGPROBS = 20
_SHOWN = 100
"""Characters of a wrong value that are repeated in an error."""


class Schema(BaseModel):
    """Base of all parts of a request."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


S = TypeVar("S", bound=Schema)


def _rule(message: str, holds: Any) -> AfterValidator:
    def check(value: Any) -> Any:
        if not holds(value):
            raise ValueError(message)
        return value

    return AfterValidator(check)


def _one_or_many(value: Any) -> Any:
    """One text stands for a list of one."""
    return [value] if isinstance(value, str) else value


Texts = Annotated[list[str], BeforeValidator(_one_or_many)]


def _prompts(value: Any) -> Any:
    """Text, ids, or a list of either -> a list of texts or of lists of ids."""
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(each, int) for each in value)):
        return [value]
    return value


def _is_prompt(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(token, int) and not isinstance(token, bool) for token in value)
    )


Prompts = Annotated[
    Any,
    BeforeValidator(_prompts),
    _rule(
        "must be a text, a list of token ids, or a list of either",
        lambda value: isinstance(value, list) and len(value) > 0 and all(map(_is_prompt, value)),
    ),
]


class StreamOptions(Schema):
    """Of a streamed answer."""

    include_usage: bool = False


class SpeculationFields(Schema):
    """How this request speculates; what is not said is as the server was told."""

    enabled: bool | None = None
    proposer: str | None = None
    draft_length: Annotated[int, Field(ge=0, le=128)] | Literal["adaptive"] | None = None
    max_draft_length: Annotated[int, Field(ge=1, le=128)] | None = None
    rule: Literal[RULE_NAMES] | None = None  # type: ignore[valid-type]
    metrics: bool = False
    tokens: bool = False


class TextPart(Schema):
    """A part of a message; only text is understood."""

    type: Literal["text"]
    text: str


if TYPE_CHECKING:
    Content = str
else:
    Content = Annotated[
        list[TextPart],
        BeforeValidator(lambda value: [{"type": "text", "text": value}] if isinstance(value, str) else value),
        AfterValidator(lambda parts: "".join(part.text for part in parts)),
    ]
"""A text, or a list of text parts, which are joined."""


class Prediction(Schema):
    """A text that much of the output will repeat."""

    type: Literal["content"]
    content: Content


class Sampling(Schema):
    """What completions and chats have in common."""

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Texts | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    user: str | None = None
    prediction: Prediction | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    cache_salt: str | None = None
    priority: Annotated[int, Field(ge=-1000, le=1000)] | None = None
    speculation: SpeculationFields | None = None


class CompletionRequest(Sampling):
    """Body of `/v1/completions`."""

    prompt: Prompts
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None


class FunctionCall(Schema):
    """A call that the model made in an earlier turn."""

    name: str
    arguments: str


class ToolCall(Schema):
    """A call of a tool in an earlier turn."""

    id: str
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Schema):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None


class Function(Schema):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Schema):
    """A tool that the model may call."""

    type: Literal["function"]
    function: Function


class NamedFunction(Schema):
    """The name of a function."""

    name: str


class NamedTool(Schema):
    """The one tool to call."""

    type: Literal["function"]
    function: NamedFunction


class JsonSchema(Schema):
    """The schema that the output has to fit."""

    name: str
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Schema):
    """What the output has to look like."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class ChatRequest(Sampling):
    """Body of `/v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=0)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None


def parse(kind: type[S], body: bytes) -> S:
    """Read a request.

    Raises:
        ApiError: 400, naming the field.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _explain(error.errors(include_url=False)) from error


def _explain(details: Sequence[ErrorDetails]) -> ApiError:
    """The first error, in our words where the library's would not help."""
    first = details[0]
    field = _path(first["loc"])
    match first["type"]:
        case "json_invalid":
            return invalid(None, f"the body must be JSON: {first['ctx']['error']}", "invalid_json")
        case "missing":
            return invalid(field, f"{field} is required")
        case "extra_forbidden":
            return invalid(field, f"{field} is not a field of this request", "unknown_field")
        case "value_error":
            return invalid(field, f"{field} {first['ctx']['error']}, got {_shown(first['input'])}")
    return invalid(
        field or None, f"{field or 'the body'} {_alternatives(details, field)}, got {_shown(first['input'])}"
    )


def _path(location: Sequence[str | int]) -> str:
    """`messages.0.role`; the names that the library gives to the branches of a union are left out."""
    parts = [str(part) for part in location]
    return ".".join(part for part in parts if part.isdigit() or (part.isidentifier() and part not in _BRANCHES))


_BRANCHES = frozenset({"int", "str", "NamedTool"})


def _alternatives(details: Sequence[ErrorDetails], field: str) -> str:
    """What each branch of a union wants of the same field."""
    rules = [detail["msg"] for detail in details if _path(detail["loc"]) == field]
    wants = [rule.replace("Input should", "must", 1).replace("must be", "be") for rule in dict.fromkeys(rules)]
    return f"must {' or '.join(wants)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
