"""The one event generator: what the engine brings for the answers to one request, whether streamed or not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from gamaneh.core import StepOutput
from gamaneh.engine.async_engine import AsyncEngine, RequestStream
from gamaneh.errors import EngineStopped
from gamaneh.options import SamplingParams, SpeculationOptions
from gamaneh.sampling.edits import MaskSource
from gamaneh.server.errors import NO_RETRY, ApiError, failed, from_engine_stopped


@dataclass(frozen=True, slots=True)
class Job:
    """One answer to be made.

    Args:
        reference: token ids of a text that the answer is likely to repeat.
        salt: answers with different salts share no cached prefixes.
        mask: restricts the output.
        text: the prompt as text, where it was one.
    """

    prompt: Sequence[int]
    params: SamplingParams
    speculation: SpeculationOptions
    reference: Sequence[int] = ()
    salt: str = ""
    mask: MaskSource | None = None
    priority: int = 0
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """What one step brought for one answer."""

    choice: int
    output: StepOutput


class Answers:
    """The answers to one request, from their start to their end.

    Whoever starts them must `close` them, whatever happens.

    Args:
        jobs: one for each answer.
        name: unique; the requests to the engine are called after it.
        deadline: when to give up, by the clock of the event loop.
    """

    def __init__(self, engine: AsyncEngine, jobs: Sequence[Job], name: str, deadline: float) -> None:
        self.engine, self.jobs, self.deadline = engine, jobs, deadline
        self.names = [f"{name}-{choice}" for choice in range(len(jobs))]
        self.streams: list[RequestStream] = []
        self.ended: set[int] = set()

    async def start(self) -> None:
        """Hand the jobs to the engine.

        Raises:
            InvalidRequest: one of them breaks a rule.
            ApiError: 503, the engine has stopped.
        """
        with _engine_errors():
            for job, name in zip(self.jobs, self.names, strict=True):
                stream = await self.engine.submit(
                    job.prompt,
                    job.params,
                    request_id=name,
                    speculation=job.speculation,
                    reference=job.reference,
                    salt=job.salt,
                    mask=job.mask,
                    priority=job.priority,
                )
                self.streams.append(stream)

    async def events(self) -> AsyncGenerator[Event]:
        """What the engine brings, as it comes; ends when all answers have.

        Raises:
            ApiError: 408, the time is over; 500, an answer failed; 503, the engine has stopped.
        """
        pending: dict[asyncio.Future[StepOutput], int] = {
            asyncio.ensure_future(anext(stream)): choice for choice, stream in enumerate(self.streams)
        }
        try:
            while pending:
                for task in await self._first_done(pending):
                    choice = pending.pop(task)
                    event = self._event(choice, task)
                    yield event
                    if choice not in self.ended:
                        pending[asyncio.ensure_future(anext(self.streams[choice]))] = choice
        finally:
            for task in pending:
                task.cancel()

    def close(self) -> None:
        """Stop what has not ended, before the next step."""
        for choice, name in enumerate(self.names):
            if choice not in self.ended:
                self.engine.abort(name)

    async def _first_done(self, pending: dict[asyncio.Future[StepOutput], int]) -> Sequence[asyncio.Future[StepOutput]]:
        left = self.deadline - asyncio.get_running_loop().time()
        done, _ = await asyncio.wait(pending, timeout=max(left, 0.0), return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise ApiError(408, "the time for one request is over", code="request_timeout", headers=NO_RETRY)
        return sorted(done, key=pending.__getitem__)

    def _event(self, choice: int, task: asyncio.Future[StepOutput]) -> Event:
        with _engine_errors():
            output = task.result()
        if output.finish_reason is not None:
            self.ended.add(choice)
        if output.error is not None:
            raise failed(output.error)
        return Event(choice, output)


@contextmanager
def _engine_errors() -> Iterator[None]:
    try:
        yield
    except EngineStopped as error:
        raise from_engine_stopped(error) from error
