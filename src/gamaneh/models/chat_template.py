"""Conversations through a model's chat template: what users wrote stays text, and calls stay as they were written."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerFast

from gamaneh.errors import InvalidRequest

TEXT_BEGINS, TEXT_ENDS = "\ufdd0", "\ufdd1"
"""Stand around text that must not become a control token. Both are noncharacters, which no text has a use for."""

_GUARDS = re.compile(f"[{TEXT_BEGINS}{TEXT_ENDS}]")
_MOST_SHOWN = 100

Message = Mapping[str, Any]


def render(
    backend: PreTrainedTokenizerFast,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None,
    controls: Collection[str],
    variables: Mapping[str, Any],
) -> str:
    """The text of a conversation, up to where the answer begins.

    Args:
        controls: texts of control tokens. Where a message, a tool or a variable has one, the guards stand around it.
        variables: what else the template is told.

    Raises:
        InvalidRequest: the model has no chat template, or the template refuses the messages.
    """
    if backend.chat_template is None:
        raise InvalidRequest("messages", "need a model with a chat template", len(messages))
    guarded = _Guard(controls)
    kept = [_parsed(guarded.value(dict(message))) for message in messages]
    try:
        text = backend.apply_chat_template(
            kept,
            tools=None if tools is None else [guarded.value(dict(tool)) for tool in tools],
            add_generation_prompt=True,
            tokenize=False,
            **guarded.value(dict(variables)),
        )
    except Exception as error:  # a template may raise anything at all
        reason = f"{error}"[:_MOST_SHOWN]
        count = f"{len(messages)} messages"
        raise InvalidRequest("messages", f"must fit the model's chat template ({reason})", count) from error
    return _without_surrogates(_as_written(str(text), [guarded.value(dict(message)) for message in messages]))


def parts(text: str) -> list[tuple[str, bool]]:
    """The text cut at its guards: pieces, and whether each must not become a control token."""
    pieces = re.split(f"{TEXT_BEGINS}([^{TEXT_ENDS}]*){TEXT_ENDS}", text)
    return [(_GUARDS.sub("", piece), at % 2 == 1) for at, piece in enumerate(pieces) if piece]


class _Guard:
    """Puts the guards around control texts in values of any depth, and takes away those that come from outside."""

    def __init__(self, controls: Collection[str]) -> None:
        longest_first = sorted(filter(None, controls), key=len, reverse=True)
        self._controls = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def value(self, value: Any) -> Any:
        if isinstance(value, str):
            text = _GUARDS.sub("", value)
            return text if self._controls is None else self._controls.sub(f"{TEXT_BEGINS}\\g<0>{TEXT_ENDS}", text)
        if isinstance(value, Mapping):
            return {self.value(key): self.value(each) for key, each in value.items()}
        return [self.value(each) for each in value] if isinstance(value, list | tuple) else value


def _calls(message: Message) -> list[dict[str, Any]]:
    return [call["function"] for call in message.get("tool_calls") or () if isinstance(call.get("function"), dict)]


def _parsed(message: dict[str, Any]) -> dict[str, Any]:
    """Templates write arguments as JSON themselves, so that they must be objects; what is none stays text."""
    for function in _calls(message):
        function["arguments"] = _arguments(function)
    return message


def _arguments(function: Mapping[str, Any]) -> Any:
    written = function.get("arguments")
    if not isinstance(written, str):
        return {} if written is None else written
    try:
        value = json.loads(written or "{}")
    except (ValueError, RecursionError):
        return written
    return value if isinstance(value, dict) else written


def _as_written(text: str, messages: Sequence[Message]) -> str:
    """Put arguments back as the model wrote them, where the template has spelled them anew."""
    place = 0
    for function in (function for message in messages for function in _calls(message)):
        written = function.get("arguments")
        if isinstance(written, str) and written:
            spelled = json.dumps(_arguments(function), ensure_ascii=False)
            at = text.find(spelled, place)
            if at >= 0:
                text = text[:at] + written + text[at + len(spelled) :]
                place = at + len(written)
    return text


def _without_surrogates(text: str) -> str:
    """Half a character, as JSON can spell one, is U+FFFD: no tokenizer reads it."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
