"""What requests may hold. Wrong types are never bent into right ones; null is a field that is not there."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic_core import ErrorDetails

from gamaneh.options import RULE_NAMES
from gamaneh.server.api_errors import ApiError, invalid

MAX_LOGPROBS = 20
_SHOWN = 100
"""Characters of a wrong value that are repeated in an error."""


def _always(value: Any) -> bool:
    return True


def _one_of(*values: Any) -> Callable[[Any], bool]:
    """Whether a value is one of these, of the same type."""
    return lambda value: any(type(value) is type(each) and value == each for each in values)


def _switched_off(value: Any) -> bool:
    return not value


@dataclass(slots=True)
class Reading:
    """How a body is read, and what was found while reading it.

    Args:
        warn: unknown fields are passed over and noted in `unknown`, not refused.
    """

    warn: bool = False
    unknown: list[str] = field(default_factory=list)


class Schema(BaseModel):
    """Base of all parts of a request. A field that is null is a field that is not there.

    Attributes:
        harmless: fields of OpenAI's and of other engines' dialects that change nothing here -> values of which that is
            true. Other values are refused by name.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)
    harmless: ClassVar[Mapping[str, Callable[[Any], bool]]] = {}

    @model_validator(mode="before")
    @classmethod
    def _without_what_changes_nothing(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, dict):
            return value
        known = {each.alias or name for name, each in cls.model_fields.items()}
        kept = {}
        for name, each in value.items():
            if each is None or (name not in known and name in cls.harmless and cls.harmless[name](each)):
                continue
            if (
                name not in known
                and name not in cls.harmless
                and isinstance(info.context, Reading)
                and info.context.warn
            ):
                info.context.unknown.append(name[:_SHOWN])
                continue
            kept[name] = each
        return kept


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

    harmless = {"include_obfuscation": _always}

    include_usage: bool = False
    continuous_usage_stats: bool = False


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
    """A part of a message; only text is understood, a refusal's too."""

    harmless = {"cache_control": _always, "annotations": _always}

    type: Literal["text", "refusal"]
    text: str = ""
    refusal: str = ""

    @property
    def words(self) -> str:
        return self.text or self.refusal


if TYPE_CHECKING:
    Content = str
else:
    Content = Annotated[
        list[TextPart],
        BeforeValidator(lambda value: [{"type": "text", "text": value}] if isinstance(value, str) else value),
        AfterValidator(lambda parts: "".join(part.words for part in parts)),
    ]
"""A text, or a list of text parts, which are joined."""


class Prediction(Schema):
    """A text that much of the output will repeat."""

    type: Literal["content"]
    content: Content


class Sampling(Schema):
    """What completions and chats have in common."""

    harmless = {
        **dict.fromkeys(("store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key"), _always),
        **dict.fromkeys(("prompt_cache_retention", "verbosity", "request_id", "return_tokens_as_token_ids"), _always),
        "modalities": _one_of(["text"]),
        "audio": _switched_off,
        "best_of": _one_of(1),
        "suffix": _one_of(""),
        "use_beam_search": _one_of(False),
        "length_penalty": _one_of(1, 1.0),
        "early_stopping": _one_of(False),
        "skip_special_tokens": _one_of(True),
        "spaces_between_special_tokens": _always,
        "include_stop_str_in_output": _one_of(False),
        "detokenize": _one_of(True),
        "typical_p": _one_of(1, 1.0),
        "return_token_ids": _one_of(False),
    }

    model: str | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=0)] | None = None
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

    harmless = {**Sampling.harmless, "add_special_tokens": _one_of(True)}

    prompt: Prompts
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None


class FunctionCall(Schema):
    """A call that the model made in an earlier turn; its arguments as it wrote them, or as an object."""

    name: str
    arguments: Annotated[Any, _rule("must be text or an object", lambda value: isinstance(value, str | dict))] = ""


class ToolCall(Schema):
    """A call of a tool in an earlier turn."""

    harmless = {"index": _always, "cache_control": _always}

    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(Schema):
    """One turn of a conversation."""

    harmless = {
        **dict.fromkeys(
            ("annotations", "audio", "function_call", "id", "metadata", "parsed", "cache_control"), _always
        ),
        **dict.fromkeys(("status", "logprobs", "finish_reason", "provider_specific_fields", "token_ids"), _always),
    }

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None


class Function(Schema):
    """A function that the model may call."""

    name: Annotated[str, _rule("must not be empty", bool)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Schema):
    """A tool that the model may call."""

    harmless = {"cache_control": _always}

    type: Literal["function"]
    function: Function


class NamedFunction(Schema):
    """The name of a function."""

    name: str


class NamedTool(Schema):
    """The one tool to call."""

    type: Literal["function"]
    function: NamedFunction


class Allowed(Schema):
    """Which of the tools may be called, and whether one has to be."""

    mode: Literal["auto", "required"]
    tools: list[NamedTool]


class AllowedTools(Schema):
    """A choice among some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: Allowed


def _choice_kind(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", "word")
    return kind if kind in ("function", "allowed_tools") else "word" if isinstance(value, str) else "function"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("word")]
    | Annotated[NamedTool, Tag("function")]
    | Annotated[AllowedTools, Tag("allowed_tools")],
    Discriminator(_choice_kind),
]


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

    harmless = {
        **Sampling.harmless,
        "functions": _switched_off,
        "function_call": _one_of("none", "auto"),
        "echo": _one_of(False),
        "add_generation_prompt": _one_of(True),
        "continue_final_message": _one_of(False),
        "add_special_tokens": _one_of(False),
    }

    messages: Annotated[list[Message], Field(min_length=1)]
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None


def parse(kind: type[S], body: bytes, reading: Reading | None = None) -> S:
    """Read a request.

    Raises:
        ApiError: 400, naming the field.
    """
    try:
        return kind.model_validate_json(body, context=reading or Reading())
    except ValidationError as error:
        raise _explain(error.errors(include_url=False), body) from error
    except RecursionError as error:
        raise invalid(None, "the body must be JSON of fewer levels", "invalid_json") from error


def _explain(details: Sequence[ErrorDetails], body: bytes) -> ApiError:
    """The first error, in our words where the library's would not help."""
    first = details[0]
    if first["type"] == "json_invalid":
        return invalid(None, f"the body must be JSON: {first['ctx']['error']}", "invalid_json")
    whole = json.loads(body)
    field = _path(first, whole)
    match first["type"]:
        case "missing":
            return invalid(field, f"{field} is required")
        case "extra_forbidden" if first["loc"][-1] in _HARMLESS:
            return invalid(
                field, f"{field} can only have a value that changes nothing, got {shown_value(first['input'])}"
            )
        case "extra_forbidden":
            return invalid(field, f"{field} is not a field of this request", "unknown_field")
        case "value_error":
            return invalid(field, f"{field} {first['ctx']['error']}, got {shown_value(first['input'])}")
    wants = _alternatives([detail for detail in details if _path(detail, whole) == field])
    return invalid(field or None, f"{field or 'the body'} {wants}, got {shown_value(first['input'])}")


def _path(detail: ErrorDetails, whole: Any) -> str:
    """`messages.0.role`, as the client wrote it; the library's names for branches of a union are left out."""
    parts, value = [], whole
    for part in detail["loc"]:
        try:
            value = value[part]
        except (LookupError, TypeError):
            continue
        parts.append(str(part))
    if detail["type"] == "missing":
        parts.append(str(detail["loc"][-1]))
    return ".".join(part[:_SHOWN] for part in parts)


def _alternatives(details: Sequence[ErrorDetails]) -> str:
    """What each branch of a union wants of the same field."""
    wants = dict.fromkeys(_rule_of(detail).removeprefix("must ") for detail in details)
    return f"must {' or '.join(wants)}"


def _rule_of(detail: ErrorDetails) -> str:
    if detail["type"] == "too_short":
        return f"must have at least {detail['ctx']['min_length']} element"
    if detail["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return "must be an object"
    return detail["msg"].replace("Input should", "must", 1)


def shown_value(value: Any) -> str:
    """A wrong value, as JSON and not at length."""
    try:
        text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


_HARMLESS = frozenset(
    name
    for kind in (StreamOptions, TextPart, CompletionRequest, ChatRequest, Message, ToolCall, Tool)
    for name in kind.harmless
)
