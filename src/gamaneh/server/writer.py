"""From events to chunks, and from chunks to one response: an answer that is not streamed is a folded stream."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Protocol

from gamaneh.server.events import Answers, Event
from gamaneh.server.explain import TokenDetails, approximation, speculation_metrics
from gamaneh.server.schemas import SpeculationFields
from gamaneh.server.tokens import SupportsTokens
from gamaneh.server.usage import Tally

Delta = dict[str, Any]
"""An element of `choices` in a chunk; an element of `choices` in a response is folded from several."""


class Format(Protocol):
    """How one route puts answers."""

    kind: str
    chunk_kind: str

    @property
    def reasoning_tokens(self) -> int:
        """Tokens so far whose text was put as reasoning, of all answers."""
        ...

    def deltas(self, event: Event, *, always: bool = False) -> list[Delta]:
        """What one event adds; the last of them has the finish reason if the answer has ended.

        Args:
            always: at least one, even if it says nothing.
        """
        ...

    def fold(self, deltas: Sequence[Delta]) -> Delta:
        """All deltas of one answer in one."""
        ...


class Writer:
    """Writes the answers to one request.

    Args:
        name: `id` of the response.
        model: what the client calls the model.
        per_prompt: answers to each prompt.
        wants: what the request wants to know about speculation.
        keep_text: keep what was said, for the log.
    """

    def __init__(
        self,
        answers: Answers,
        style: Format,
        tokenizer: SupportsTokens,
        *,
        name: str,
        model: str,
        per_prompt: int,
        wants: SpeculationFields,
        keep_text: bool = False,
    ) -> None:
        self.answers, self.style, self.wants = answers, style, wants
        self.tally = Tally(answers, per_prompt, keep_text=keep_text)
        self._head = {"id": name, "created": int(time.time()), "model": model}
        self._details = [TokenDetails(tokenizer) for _ in answers.jobs] if wants.tokens else []

    async def chunks(self, *, usage: bool) -> AsyncGenerator[dict[str, Any]]:
        """Each event as chunks; with `usage`, one more chunk at the end that has no choices.

        Raises:
            ApiError: as `Answers.events`.
        """
        async with aclosing(self.answers.events()) as events:
            async for event in events:
                self.tally.add(event)
                for chunk in self._chunks(event, last=not usage):
                    yield {**chunk, "usage": None} if usage else chunk
        if usage:
            yield self._chunk([], usage=self.tally.usage(self.style.reasoning_tokens), **self._gamaneh(self._metrics()))

    async def whole(self) -> dict[str, Any]:
        """One response with everything.

        Raises:
            ApiError: as `Answers.events`.
        """
        async with aclosing(self.chunks(usage=True)) as chunks:
            collected = [chunk async for chunk in chunks]
        deltas = [delta for chunk in collected for delta in chunk["choices"]]
        return {
            "id": self._head["id"],
            "object": self.style.kind,
            **self._head,
            "choices": [
                self.style.fold([delta for delta in deltas if delta["index"] == choice])
                for choice in range(len(self.answers.jobs))
            ],
            "usage": collected[-1]["usage"],
            **_folded([chunk["gamaneh"] for chunk in collected if "gamaneh" in chunk]),
        }

    def _chunks(self, event: Event, *, last: bool) -> list[dict[str, Any]]:
        """Chunks of one event; what is told beside the choices goes with the last of them."""
        about: dict[str, Any] = {}
        if self._details and (entries := self._details[event.choice].entries(event)):
            about["tokens"] = entries
        if last and len(self.answers.ended) == len(self.answers.jobs):
            about |= self._metrics()
        chunks = [self._chunk([delta]) for delta in self.style.deltas(event, always=bool(about))]
        if about:
            chunks[-1] |= self._gamaneh(about)
        return chunks

    def _chunk(self, choices: list[Delta], **more: Any) -> dict[str, Any]:
        return {"id": self._head["id"], "object": self.style.chunk_kind, **self._head, "choices": choices, **more}

    def _metrics(self) -> dict[str, Any]:
        about = approximation(self.answers.streams)
        if self.wants.metrics:
            about["speculation"] = speculation_metrics(self.answers.streams, self.tally.origins)
        return about

    def _gamaneh(self, about: dict[str, Any]) -> dict[str, Any]:
        return {"gamaneh": about} if about else {}


def _folded(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What chunks told beside their choices, in one."""
    tokens = [entry for part in parts for entry in part.get("tokens", ())]
    whole = {key: value for part in parts for key, value in part.items()} | ({"tokens": tokens} if tokens else {})
    return {"gamaneh": whole} if whole else {}
