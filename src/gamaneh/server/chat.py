"""`/v1/chat/completions`: a conversation, put through the model's chat template, with some answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gamaneh.core import FinishReason, StepOutput, TokenLogprob
from gamaneh.server.answer_parser import CALL, CALL_END, AnswerParser, message
from gamaneh.server.choice import Choice, Delta, Job, SupportsTokens, cuts, finite, shown, token_bytes
from gamaneh.server.schemas import ChatRequest, Message


def template_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """The conversation as chat templates expect it; arguments of earlier calls stay as they were written."""
    return [_template_message(message) for message in messages]


def _template_message(message: Message) -> dict[str, Any]:
    reasoning = message.reasoning_content if message.reasoning is None else message.reasoning
    named = {"name": message.name, "tool_call_id": message.tool_call_id, "reasoning_content": reasoning}
    calls = [
        {
            "id": call.id,
            "type": call.type,
            "function": {"name": call.function.name, "arguments": call.function.arguments},
        }
        for call in message.tool_calls or ()
    ]
    return {
        "role": "system" if message.role == "developer" else message.role,
        "content": message.content or message.refusal or "",
        **{key: value for key, value in named.items() if value is not None},
        **({"tool_calls": calls} if calls else {}),
    }


def tools_in_words(messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The conversation for a template that has no place for tools: they stand in the system turn, calls in content."""
    told = [_call_in_words(message) for message in messages]
    if not tools:
        return told
    system = f"{told.pop(0)['content']}\n\n" if told and told[0]["role"] == "system" else ""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    example = '{"name": "the function", "arguments": {"an argument": "its value"}}'
    words = (
        f"{system}You may call these functions:\n{listed}\n"
        f"To call one, write this, and its result will be given to you:\n{CALL}\n{example}\n{CALL_END}"
    )
    return [{"role": "system", "content": words}, *told]


def _call_in_words(message: Mapping[str, Any]) -> dict[str, Any]:
    told = {key: value for key, value in message.items() if key not in ("tool_calls", "tool_call_id")}
    calls = [_written(call["function"]) for call in message.get("tool_calls", ())]
    if message["role"] == "tool":
        told |= {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    return told | {"content": "\n".join(filter(None, [told["content"], *calls]))}


def _written(function: Mapping[str, Any]) -> str:
    arguments = function["arguments"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    name = json.dumps(function["name"], ensure_ascii=False)
    return f'{CALL}\n{{"name": {name}, "arguments": {text or "{}"}}}\n{CALL_END}'


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


class ChatChoice(Choice):
    """An answer of a chat completion."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, index: int, job: Job, tokenizer: SupportsTokens, request: ChatRequest, parts: Parts) -> None:
        super().__init__(index, job, tokenizer)
        self._wants_logprobs = bool(request.logprobs)
        self._parts, self._parser = parts, parts.parser()
        self._places = TokenPlaces()
        self._begun = False

    @property
    def reasoning_tokens(self) -> int:
        return self._places.count(self._parser.reasoning_part)

    def deltas(self, output: StepOutput, *, always: bool) -> list[Delta]:
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

    def fold(self, deltas: Sequence[Delta]) -> Delta:
        logprobs = [delta["logprobs"]["content"] for delta in deltas if delta["logprobs"]]
        return {
            "index": self.index,
            "message": message([delta["delta"] for delta in deltas]),
            "logprobs": {"content": [entry for part in logprobs for entry in part], "refusal": None}
            if logprobs
            else None,
            "finish_reason": deltas[-1]["finish_reason"],
        }

    def _greeting(self) -> list[dict[str, Any]]:
        begun, self._begun = self._begun, True
        return [] if begun else [{"role": "assistant", "content": ""}]

    def _said(self, text: str, ended: bool) -> list[dict[str, Any]]:
        said = [*self._parser.feed(text), *(self._parser.finish() if ended else ())]
        deltas = [each.delta() for each in said]
        return deltas if self._parts.parallel else list(filter(_of_first_call, deltas))

    def _finish_reason(self, reason: FinishReason) -> str:
        """A call that was only begun is never announced as done."""
        whole = self._parser.calls_are_whole(first_only=not self._parts.parallel)
        return "tool_calls" if reason is FinishReason.STOP and whole else reason.value

    def _delta(self, said: dict[str, Any], finish: str | None = None) -> Delta:
        return {"index": self.index, "delta": said, "logprobs": None, "finish_reason": finish}

    def _logprobs(self, output: StepOutput) -> dict[str, Any]:
        entries = zip(output.logprobs, cuts(output), strict=True)
        return {"content": [self._entry(entry, cut) for entry, cut in entries], "refusal": None}

    def _entry(self, entry: TokenLogprob, cut: int) -> dict[str, Any]:
        top = [self._one(token, logprob, cut * (token == entry.token)) for token, logprob in entry.top]
        return {**self._one(entry.token, entry.logprob, cut), "top_logprobs": top}

    def _one(self, token: int, logprob: float, cut: int) -> dict[str, Any]:
        data = token_bytes(self.tokenizer, token, cut)
        return {"token": shown(self.tokenizer, token, cut), "logprob": finite(logprob), "bytes": list(data)}


class TokenPlaces:
    """The tokens of one answer by the characters that each of them completed.

    A token without text of its own, such as a part of a character, goes with the next one that has some. How
    tokens come together in steps makes no difference.
    """

    def __init__(self) -> None:
        self._places: list[tuple[range, int]] = []
        self._end = self._waiting = 0

    def add(self, output: StepOutput) -> None:
        """The tokens of one step."""
        for text in output.texts:
            self._waiting += 1
            if text:
                start, self._end = self._end, self._end + len(text)
                self._places.append((range(start, self._end), self._waiting))
                self._waiting = 0

    def count(self, part: range) -> int:
        """Tokens that hold at least one of these characters."""
        return sum(
            tokens for place, tokens in self._places if max(place.start, part.start) < min(place.stop, part.stop)
        )


def _of_first_call(delta: Mapping[str, Any]) -> bool:
    """Whether a delta belongs to the first call, or to none."""
    return all(call["index"] == 0 for call in delta.get("tool_calls", ()))
