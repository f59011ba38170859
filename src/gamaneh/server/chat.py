"""`/v1/chat/completions`: a conversation, put through the model's chat template, with some answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gamaneh.core import FinishReason, StepOutput, TokenLogprob
from gamaneh.server.answer import AnswerParser
from gamaneh.server.errors import invalid
from gamaneh.server.events import Event, Job
from gamaneh.server.said import message
from gamaneh.server.schemas import ChatRequest, Message, ToolCall
from gamaneh.server.token_places import TokenPlaces
from gamaneh.server.tokens import SupportsTokens, cuts, finite, shown, token_bytes
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


@dataclass(frozen=True, slots=True)
class Parts:
    """What answers are made of.

    Args:
        reasoning: look for reasoning in front of the answer; `inside` if the prompt has opened it already.
        tools: look for calls of tools; `parallel` allows more than one.
    """

    reasoning: bool = False
    inside: bool = False
    tools: bool = False
    parallel: bool = True

    def parser(self) -> AnswerParser:
        """A parser for one answer."""
        return AnswerParser(reasoning=self.reasoning, inside=self.inside, tools=self.tools)


class ChatFormat:
    """Chat completions."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, request: ChatRequest, jobs: Sequence[Job], tokenizer: SupportsTokens, parts: Parts) -> None:
        logprobs = bool(request.logprobs)
        self._choices = [_Choice(at, job, tokenizer, logprobs, parts) for at, job in enumerate(jobs)]

    @property
    def reasoning_tokens(self) -> int:
        return sum(choice.reasoning_tokens for choice in self._choices)

    def deltas(self, event: Event, *, always: bool = False) -> list[Delta]:
        return self._choices[event.choice].add(event.output, always)

    def fold(self, deltas: Sequence[Delta]) -> Delta:
        logprobs = [delta["logprobs"]["content"] for delta in deltas if delta["logprobs"]]
        return {
            "index": deltas[0]["index"],
            "message": message([delta["delta"] for delta in deltas]),
            "logprobs": {"content": [entry for part in logprobs for entry in part], "refusal": None}
            if logprobs
            else None,
            "finish_reason": deltas[-1]["finish_reason"],
        }


class _Choice:
    """One answer, as it comes."""

    def __init__(self, index: int, job: Job, tokenizer: SupportsTokens, logprobs: bool, parts: Parts) -> None:
        self._index, self._tokenizer, self._wants_logprobs = index, tokenizer, logprobs
        self._parts, self._parser = parts, parts.parser()
        self._places = TokenPlaces()
        self._begun = False

    @property
    def reasoning_tokens(self) -> int:
        """Tokens so far that hold text of the reasoning."""
        return self._places.count(self._parser.reasoning_part)

    def add(self, output: StepOutput, always: bool) -> list[Delta]:
        """What one step says; with `always`, at least an empty delta."""
        ended = output.finish_reason is not None
        told = bool(self._wants_logprobs and output.logprobs)
        if not self._parser.reasoning_ended:
            self._places.add(output)
        said = [*self._greeting(), *self._said(output.text, ended)]
        if not said and (told or (always and not ended)):
            said = [{"content": ""}] if told else [{}]
        deltas = [self._delta(each) for each in said]
        if told:
            deltas[-1]["logprobs"] = self._logprobs(output)
        if output.finish_reason is not None:
            deltas.append(self._delta({}, self._finish_reason(output.finish_reason)))
        return deltas

    def _greeting(self) -> list[dict[str, Any]]:
        begun, self._begun = self._begun, True
        return [] if begun else [{"role": "assistant", "content": ""}]

    def _said(self, text: str, ended: bool) -> list[dict[str, Any]]:
        said = [*self._parser.feed(text), *(self._parser.finish() if ended else ())]
        deltas = [each.delta() for each in said]
        return deltas if self._parts.parallel else list(filter(_of_first_call, deltas))

    def _finish_reason(self, reason: FinishReason) -> str:
        return "tool_calls" if reason is FinishReason.STOP and self._parser.calls else reason.value

    def _delta(self, said: dict[str, Any], finish: str | None = None) -> Delta:
        return {"index": self._index, "delta": said, "logprobs": None, "finish_reason": finish}

    def _logprobs(self, output: StepOutput) -> dict[str, Any]:
        entries = zip(output.logprobs, cuts(output), strict=True)
        return {"content": [self._entry(entry, cut) for entry, cut in entries], "refusal": None}

    def _entry(self, entry: TokenLogprob, cut: int) -> dict[str, Any]:
        top = [self._one(token, logprob, cut * (token == entry.token)) for token, logprob in entry.top]
        return {**self._one(entry.token, entry.logprob, cut), "top_logprobs": top}

    def _one(self, token: int, logprob: float, cut: int) -> dict[str, Any]:
        data = token_bytes(self._tokenizer, token, cut)
        return {"token": shown(self._tokenizer, token, cut), "logprob": finite(logprob), "bytes": list(data)}


def _of_first_call(delta: Mapping[str, Any]) -> bool:
    """Whether a delta belongs to the first call, or to none."""
    return all(call["index"] == 0 for call in delta.get("tool_calls", ()))
