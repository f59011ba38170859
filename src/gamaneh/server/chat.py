"""`/v1/chat/completions`: a conversation, put through the model's chat template, with some answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gamaneh.core import FinishReason, TokenLogprob
from gamaneh.server.errors import invalid
from gamaneh.server.events import Event, Job
from gamaneh.server.schemas import ChatRequest, Message, ToolCall
from gamaneh.server.tokens import SupportsTokens, finite, shown
from gamaneh.server.writer import Delta


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The conversation as chat templates expect it.

    Raises:
        ApiError: 400, the arguments of an earlier call are not JSON.
    """
    return [_template_message(message, f"messages.{at}") for at, message in enumerate(messages)]


def _template_message(message: Message, path: str) -> dict[str, Any]:
    named = {"name": message.name, "tool_call_id": message.tool_call_id, "reasoning_content": message.reasoning_content}
    calls = [_template_call(call, f"{path}.tool_calls.{at}") for at, call in enumerate(message.tool_calls or ())]
    return {
        "role": "system" if message.role == "developer" else message.role,
        "content": message.content or "",
        **{key: value for key, value in named.items() if value is not None},
        **({"tool_calls": calls} if calls else {}),
    }


def _template_call(call: ToolCall, path: str) -> dict[str, Any]:
    """Templates write arguments as JSON themselves, so that they must not be JSON already."""
    try:
        arguments = json.loads(call.function.arguments or "{}")
    except ValueError as error:
        field = f"{path}.function.arguments"
        raise invalid(field, f"{field} must be JSON ({error}), got {call.function.arguments!r}") from error
    return {"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": arguments}}


class ChatFormat:
    """Chat completions."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, request: ChatRequest, jobs: Sequence[Job], tokenizer: SupportsTokens) -> None:
        self._choices = [_Choice(at, tokenizer, bool(request.logprobs)) for at in range(len(jobs))]

    def deltas(self, event: Event, *, always: bool = False) -> list[Delta]:
        return self._choices[event.choice].add(event, always)

    def fold(self, deltas: Sequence[Delta]) -> Delta:
        content = [delta["delta"]["content"] for delta in deltas if "content" in delta["delta"]]
        logprobs = [delta["logprobs"]["content"] for delta in deltas if delta.get("logprobs")]
        return {
            "index": deltas[0]["index"],
            "message": {"role": "assistant", "content": "".join(content), "refusal": None},
            "logprobs": {"content": [entry for part in logprobs for entry in part], "refusal": None}
            if logprobs
            else None,
            "finish_reason": deltas[-1]["finish_reason"],
        }


class _Choice:
    """One answer, as it comes."""

    def __init__(self, index: int, tokenizer: SupportsTokens, logprobs: bool) -> None:
        self._index, self._tokenizer, self._wants_logprobs = index, tokenizer, logprobs
        self._begun = False

    def add(self, event: Event, always: bool) -> list[Delta]:
        output = event.output
        said = [] if self._begun else [{"role": "assistant", "content": ""}]
        self._begun = True
        said += [{"content": output.text}] if output.text or (self._wants_logprobs and output.logprobs) else []
        deltas = [self._delta(each) for each in said]
        if self._wants_logprobs and output.logprobs:
            deltas[-1]["logprobs"] = self._logprobs(output.logprobs)
        if output.finish_reason is not None or (always and not deltas):
            deltas.append(self._delta({}, output.finish_reason))
        return deltas

    def _delta(self, said: dict[str, Any], reason: FinishReason | None = None) -> Delta:
        finish = None if reason is None else reason.value
        return {"index": self._index, "delta": said, "logprobs": None, "finish_reason": finish}

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> dict[str, Any]:
        return {"content": [self._entry(entry) for entry in entries], "refusal": None}

    def _entry(self, entry: TokenLogprob) -> dict[str, Any]:
        top = [self._one(token, logprob) for token, logprob in entry.top]
        return {**self._one(entry.token, entry.logprob), "top_logprobs": top}

    def _one(self, token: int, logprob: float) -> dict[str, Any]:
        data = self._tokenizer.token_bytes(token)
        return {"token": shown(self._tokenizer, token), "logprob": finite(logprob), "bytes": list(data)}
