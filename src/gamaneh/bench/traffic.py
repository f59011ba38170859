"""Many requests at once against an engine in this process or a server, timed where the caller stands.

Formulas
    throughput  emitted tokens of all requests / seconds from the first request to the last end
    TTFT        first delivery - request sent
    ITL         gaps between one delivery of tokens and the next
    E2E         last delivery - request sent
    TPOT        (last delivery - first delivery) / (tokens - 1)
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

from gamaneh.bench.counts import Counts
from gamaneh.core import FinishReason, StepOutput
from gamaneh.engine.async_engine import AsyncEngine, RequestStream
from gamaneh.errors import GamanehError
from gamaneh.models.tokenizer import Tokenizer
from gamaneh.options import SamplingParams, SpeculationOptions


class RequestFailed(GamanehError):
    """A request was not answered to its end."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Args:
        text: what the user says.
        speculate: as the engine does by default, or plain.
        salt: requests with different salts share no cached prefixes and no texts to guess from.
    """

    text: str
    params: SamplingParams
    speculate: bool = True
    salt: str = ""


@dataclass(frozen=True, slots=True)
class Ending:
    """What whoever answered says about the whole answer; None where it says nothing.

    Args:
        tokens, prompt_tokens: of output and prompt.
        counts: what was drafted.
        queue: seconds before the request was in the batch.
        prefill: seconds from there to the first token.
        draft, verify: seconds of the rounds that the request had a part in, whole and not shared out.
    """

    tokens: int | None = None
    prompt_tokens: int | None = None
    counts: Counts | None = None
    queue: float | None = None
    prefill: float | None = None
    draft: float | None = None
    verify: float | None = None


NOTHING_SAID = Ending()


@dataclass(frozen=True, slots=True)
class Delivery:
    """Tokens that arrived together.

    Args:
        ending: comes with the last delivery, if at all.
        gaps: for each token, the difference of the log-probabilities of the target's two most likely
            ones; for requests that ask for `logprobs` of at least 2.
    """

    text: str
    tokens: int
    ending: Ending | None = None
    gaps: tuple[float, ...] = ()


@dataclass(slots=True)
class Answer:
    """What came back for one request, and when, in seconds of one clock.

    Args:
        error: why it was not answered to its end.
    """

    sent: float
    deliveries: list[float] = field(default_factory=list)
    tokens: int = 0
    text: str = ""
    ending: Ending = NOTHING_SAID
    error: str | None = None

    def take(self, delivery: Delivery, now: float) -> None:
        """Something arrived."""
        self.text += delivery.text
        self.tokens += delivery.tokens
        if delivery.tokens:
            self.deliveries.append(now)
        if delivery.ending is not None:
            self.ending = delivery.ending
            self.tokens = self.tokens if delivery.ending.tokens is None else delivery.ending.tokens

    @property
    def ttft(self) -> float:
        return self.deliveries[0] - self.sent

    @property
    def e2e(self) -> float:
        return self.deliveries[-1] - self.sent

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in pairwise(self.deliveries)]

    @property
    def tpot(self) -> float | None:
        """None below two tokens, or when all of them came at once."""
        if self.tokens < 2 or len(self.deliveries) < 2:
            return None
        return (self.deliveries[-1] - self.deliveries[0]) / (self.tokens - 1)


class Client(Protocol):
    """Whoever answers requests."""

    def stream(self, ask: Ask) -> AsyncGenerator[Delivery]:
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
        """
        Raises:
            RequestFailed: the engine ended the request with an error.
            InvalidRequest: it refused the request.
        """
        request_id = f"traffic-{next(self._names)}"
        speculation = self.speculation if ask.speculate else SpeculationOptions()
        tokens = as_chat(self.tokenizer, ask.text)
        answer = await self.engine.submit(
            tokens, ask.params, request_id=request_id, speculation=speculation, salt=ask.salt
        )
        try:
            async for output in answer:
                if output.finish_reason is FinishReason.ERROR:
                    raise RequestFailed(str(output.error))
                yield Delivery(output.text, len(output.tokens), gaps=_gaps(output))
            yield Delivery("", 0, _ending(answer))
        finally:
            self.engine.abort(request_id)


def _gaps(output: StepOutput) -> tuple[float, ...]:
    tops = [sorted((logprob for _, logprob in each.top), reverse=True) for each in output.logprobs]
    return tuple(top[0] - top[1] for top in tops if len(top) > 1)


def _ending(stream: RequestStream) -> Ending:
    timeline, rounds = stream.timeline, list(stream.stats.by_proposer.values())
    draft, verify = sum(each.draft_seconds for each in rounds), sum(each.verify_seconds for each in rounds)
    # The two are shares of the batch; what the request waited for was the whole of it.
    whole = stream.stats.round_seconds / (draft + verify) if draft + verify > 0 else 0.0
    return Ending(
        prompt_tokens=None if timeline is None else timeline.prompt_tokens,
        counts=Counts.of(rounds),
        queue=None if timeline is None else timeline.queue_seconds,
        prefill=None if timeline is None else timeline.prefill_seconds,
        draft=draft * whole,
        verify=verify * whole,
    )


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


AnswerOne = Callable[[Client, Ask, float], Awaitable[Answer]]
"""Answers one request that was due at a time of `time.perf_counter`."""


async def answer_one(client: Client, ask: Ask, due: float | None = None) -> Answer:
    """Read one answer to its end; what goes wrong is raised."""
    answer = Answer(time.perf_counter() if due is None else due)
    await _read(client, ask, answer)
    return answer


async def answer_or_fail(client: Client, ask: Ask, due: float | None = None) -> Answer:
    """Read one answer as far as it goes; what goes wrong is its `error`."""
    answer = Answer(time.perf_counter() if due is None else due)
    try:
        await _read(client, ask, answer)
    except GamanehError as error:
        answer.error = str(error)
    return answer


async def _read(client: Client, ask: Ask, answer: Answer) -> None:
    async for delivery in client.stream(ask):
        answer.take(delivery, time.perf_counter())


async def closed_loop(client: Client, asks: Sequence[Ask], concurrency: int, answer: AnswerOne = answer_one) -> Traffic:
    """Answer all requests, `concurrency` at a time: as one ends, the next is sent."""
    waiting = iter(enumerate(asks))
    answers: dict[int, Answer] = {}

    async def worker() -> None:
        for at, ask in waiting:
            answers[at] = await answer(client, ask, time.perf_counter())

    started = time.perf_counter()
    async with asyncio.TaskGroup() as workers:
        for _ in range(min(concurrency, len(asks))):
            workers.create_task(worker())
    return Traffic([answers[at] for at in range(len(asks))], time.perf_counter() - started)


async def open_loop(
    client: Client, asks: Sequence[Ask], offsets: Sequence[float], answer: AnswerOne = answer_one
) -> Traffic:
    """Send each request when it is due, whoever is still waiting.

    A request counts as sent when it was due: a client that falls behind must not hide the time.

    Args:
        offsets: seconds after the start, ascending, one for each request.
    """
    started = time.perf_counter()

    async def one(ask: Ask, offset: float) -> Answer:
        await asyncio.sleep(started + offset - time.perf_counter())
        return await answer(client, ask, started + offset)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(ask, offset)) for ask, offset in zip(asks, offsets, strict=True)]
    return Traffic([task.result() for task in tasks], time.perf_counter() - started)
