"""Many requests at once against an engine in this process or a server, timed where the caller stands.

Formulas
    throughput  emitted tokens of all requests / seconds from the first request to the last end
    TTFT        first delivery - request sent
    ITL         gaps between one delivery of tokens and the next
    E2E         last delivery - request sent
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from gamaneh.engine.async_engine import AsyncEngine
from gamaneh.models.tokenizer import Tokenizer
from gamaneh.options import SamplingParams, SpeculationOptions


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Args:
        text: what the user says.
        speculate: as the engine does by default, or plain.
    """

    text: str
    params: SamplingParams
    speculate: bool = True


@dataclass(frozen=True, slots=True)
class Delivery:
    """Tokens that arrived together."""

    text: str
    tokens: int


@dataclass(slots=True)
class Answer:
    """What came back for one request, and when, in seconds of one clock."""

    sent: float
    deliveries: list[float] = field(default_factory=list)
    tokens: int = 0
    text: str = ""

    def take(self, delivery: Delivery, now: float) -> None:
        """Something arrived."""
        self.text += delivery.text
        self.tokens += delivery.tokens
        if delivery.tokens:
            self.deliveries.append(now)

    @property
    def ttft(self) -> float:
        return self.deliveries[0] - self.sent

    @property
    def e2e(self) -> float:
        return self.deliveries[-1] - self.sent

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.deliveries)]


class Client(Protocol):
    """Whoever answers requests."""

    def stream(self, ask: Ask) -> AsyncIterator[Delivery]:
        """Deliveries until the answer ends; closing it stops the request."""
        ...


class EngineClient:
    """An engine in this process.

    Args:
        speculation: of requests that speculate.
    """

    def __init__(self, engine: AsyncEngine, tokenizer: Tokenizer, speculation: SpeculationOptions) -> None:
        self.engine, self.tokenizer, self.speculation = engine, tokenizer, speculation
        self._names = itertools.count()

    async def stream(self, ask: Ask) -> AsyncGenerator[Delivery]:
        request_id = f"traffic-{next(self._names)}"
        speculation = self.speculation if ask.speculate else SpeculationOptions()
        tokens = as_chat(self.tokenizer, ask.text)
        answer = await self.engine.submit(tokens, ask.params, request_id=request_id, speculation=speculation)
        try:
            async for output in answer:
                yield Delivery(output.text, len(output.tokens))
        finally:
            self.engine.abort(request_id)


def as_chat(tokenizer: Tokenizer, text: str) -> list[int]:
    """Token ids of what a user says, in the model's chat template if it has one."""
    if tokenizer.backend.chat_template is not None:
        return tokenizer.chat([{"role": "user", "content": text}])
    return tokenizer.encode(text)


@dataclass(frozen=True, slots=True)
class Traffic:
    """The answers to all requests, in their order, and the seconds that they took together."""

    answers: Sequence[Answer]
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return sum(answer.tokens for answer in self.answers) / self.seconds


async def closed_loop(client: Client, asks: Sequence[Ask], concurrency: int) -> Traffic:
    """Answer all requests, `concurrency` at a time: as one ends, the next is sent."""
    waiting = iter(enumerate(asks))
    answers: dict[int, Answer] = {}

    async def worker() -> None:
        for at, ask in waiting:
            answers[at] = await answer_one(client, ask)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as workers:
        for _ in range(min(concurrency, len(asks))):
            workers.create_task(worker())
    return Traffic([answers[at] for at in range(len(asks))], time.perf_counter() - started)


async def answer_one(client: Client, ask: Ask) -> Answer:
    """Read one answer to its end."""
    answer = Answer(time.perf_counter())
    async for delivery in client.stream(ask):
        answer.take(delivery, time.perf_counter())
    return answer
