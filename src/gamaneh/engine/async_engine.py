"""The engine for many callers at once: one thread steps, event loops wait for what it brings."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from gamaneh.core import Request, StepOutput, StepReport
from gamaneh.engine.engine import Engine
from gamaneh.engine.request_stats import RequestStats
from gamaneh.errors import EngineStopped
from gamaneh.metrics.timeline import RequestTimeline

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """How busy the engine was after its last step.

    Args:
        running, waiting: requests.
        kv_used, kv_total: blocks of the target's KV cache, those that only keep a prefix not counted as used.
    """

    running: int
    waiting: int
    kv_used: int
    kv_total: int


class RequestStream(AsyncIterator[StepOutput]):
    """What the engine brings for one request, as it comes.

    Iterating ends after the output with a `finish_reason`; it raises `EngineStopped` when the engine
    ends before the request does.

    Args:
        stats: sums over the request's rounds; complete when the stream has ended.
        timeline: when the request was where; None until it has ended.
    """

    def __init__(self, request_id: str, loop: asyncio.AbstractEventLoop) -> None:
        self.request_id = request_id
        self.stats = RequestStats()
        self.timeline: RequestTimeline | None = None
        self._loop = loop
        self._items: asyncio.Queue[StepOutput | EngineStopped] = asyncio.Queue()
        self._ended = False

    async def __anext__(self) -> StepOutput:
        if self._ended:
            raise StopAsyncIteration
        item = await self._items.get()
        if isinstance(item, EngineStopped):
            self._ended = True
            raise item
        self._ended = item.finish_reason is not None
        return item

    def put(self, item: StepOutput | EngineStopped) -> bool:
        """Hand something over from the engine's thread; False when nobody can be waiting any more."""
        try:
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)
        except RuntimeError:  # the loop was closed under a request that was never aborted
            return False
        return True


@dataclass(frozen=True, slots=True)
class _Command:
    """What is to be done between two steps.

    Args:
        obey: does it; what it raises ends the engine.
        refuse: called in its place when the engine has ended.
    """

    obey: Callable[[], None]
    refuse: Callable[[], None] = lambda: None


class AsyncEngine:
    """Runs an engine in a thread of its own. All methods may be called from any thread.

    Args:
        engine: nobody else may touch it between `start` and `stop`, except by `call`.

    Attributes:
        failure: what ended the thread, if it did not end in order.
        ended_at: when the thread ended, by `time.monotonic`.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.failure: BaseException | None = None
        self.ended_at: float | None = None
        self._commands: SimpleQueue[_Command] = SimpleQueue()
        self._gate = threading.Lock()  # held while a command is queued and while the queue is closed
        self._closed = False
        self._streams: dict[str, RequestStream] = {}
        self._drain_until: float | None = None
        self._load = self._measure_load()
        self._turned = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="gamaneh-engine", daemon=True)
        engine.observers.append(self._count)
        engine.request_observers.append(self._time)

    @property
    def alive(self) -> bool:
        """Whether the engine's thread runs."""
        return self._thread.is_alive() and not self._closed

    @property
    def seconds_since_turn(self) -> float:
        """Age of the last sign of life. An idle engine only gives one when it is asked something."""
        return time.monotonic() - self._turned

    def load(self) -> EngineLoad:
        """How busy the engine was after its last step."""
        return self._load

    def start(self) -> None:
        """Start the thread; once in a lifetime."""
        self._thread.start()

    def drain(self, seconds: float) -> None:
        """Take no new requests, go on for at most `seconds` with those there are, then end the thread.

        Requests that are cut off raise `EngineStopped`. Does not wait.
        """
        self._post(_Command(lambda: self._drain(seconds)))

    def stop(self, drain_seconds: float = 0.0) -> None:
        """Drain, and block until the thread has ended."""
        if self._thread.ident is None:
            self._close()
            return
        self.drain(drain_seconds)
        self._thread.join()

    async def submit(self, request: Request) -> RequestStream:
        """Queue a request, which must have an id; what comes back must be read to its end or given to `abort`.

        Raises:
            InvalidRequest: the prompt or a parameter breaks a rule.
            EngineStopped: the engine takes no requests any more.
        """
        stream = RequestStream(request.id, asyncio.get_running_loop())
        arrived = replace(request, arrived=self.engine.clock())

        def add() -> None:
            if self._drain_until is not None:
                raise EngineStopped("the engine takes no new requests: it is stopping")
            self.engine.add(arrived)
            self._streams[request.id] = stream

        try:
            await asyncio.wrap_future(self.call(add))
        except asyncio.CancelledError:
            self.abort(request.id)
            raise
        return stream

    def abort(self, request_id: str) -> None:
        """Stop a request before the next step and free what it holds; one that has ended is left alone.

        Its stream ends with the reason `abort`.
        """
        self._post(_Command(lambda: self._abort(request_id)))

    def call(self, function: Callable[[], T]) -> Future[T]:
        """Run a function on the engine's thread between two steps.

        The future raises what the function raises, and `EngineStopped` when the thread has ended.
        """
        future: Future[T] = Future()
        self._post(_Command(lambda: _fulfil(future, function), lambda: _refuse(future, self._stopped())))
        return future

    def _post(self, command: _Command) -> None:
        with self._gate:
            if not self._closed:
                self._commands.put(command)
                return
        command.refuse()

    def _run(self) -> None:
        try:
            while self._turn():
                self._turned = time.monotonic()
        except BaseException as error:
            self.failure = error
        finally:
            self._close()
            self.ended_at = time.monotonic()

    def _turn(self) -> bool:
        """Obey what was queued, then do one step; False when it is time to end."""
        self._obey()
        self._load = self._measure_load()
        if self._drain_until is not None and (not self.engine.has_work or time.monotonic() >= self._drain_until):
            return False
        if self.engine.has_work:
            for output in self.engine.step():
                self._deliver(output)
        self._load = self._measure_load()
        return True

    def _obey(self) -> None:
        """Run all queued commands; an idle engine sleeps here until there is one."""
        idle = not self.engine.has_work and self._drain_until is None
        with contextlib.suppress(Empty):
            self._commands.get(block=idle).obey()
            while True:
                self._commands.get_nowait().obey()

    def _deliver(self, output: StepOutput) -> None:
        stream = self._streams.get(output.request_id)
        if stream is None:
            return
        if output.finish_reason is not None:
            del self._streams[output.request_id]
        if not stream.put(output):
            self._abort(output.request_id)

    def _abort(self, request_id: str) -> None:
        last = self.engine.abort(request_id)
        stream = self._streams.pop(request_id, None)
        if stream is not None and last is not None:
            stream.put(last)

    def _count(self, report: StepReport) -> None:
        stream = self._streams.get(report.request_id)
        if stream is not None:
            stream.stats.add(report, self._plain_step_seconds(report))

    def _plain_step_seconds(self, report: StepReport) -> float | None:
        cost = self.engine.cost
        return cost.verify_seconds(report.batch_size, batch=report.batch_size) if cost.verify else None

    def _time(self, timeline: RequestTimeline) -> None:
        stream = self._streams.get(timeline.request_id)
        if stream is not None:
            stream.timeline = timeline

    def _drain(self, seconds: float) -> None:
        self._drain_until = time.monotonic() + seconds

    def _close(self) -> None:
        """Refuse whoever comes, and tell all who wait. Nothing below relies on the engine's state."""
        with self._gate:
            self._closed = True
        with contextlib.suppress(Empty):
            while True:
                self._commands.get_nowait().refuse()
        for stream in self._streams.values():
            stream.put(self._stopped())
        self._release()

    def _release(self) -> None:
        """After an orderly end, leave an engine behind that holds nothing of the requests cut off."""
        if self.failure is None:
            for request_id in self._streams:
                self.engine.abort(request_id)
        self._streams.clear()
        self._load = self._measure_load()

    def _stopped(self) -> EngineStopped:
        if self.failure is None:
            return EngineStopped("the engine has stopped")
        return EngineStopped(f"the engine has failed: {type(self.failure).__name__}: {self.failure}")

    def _measure_load(self) -> EngineLoad:
        scheduler, room = self.engine.scheduler, self.engine.backend.room()
        used, total = (room.total - room.free) // room.unit, room.total // room.unit
        return EngineLoad(len(scheduler.running), len(scheduler.waiting), used, total)


def _fulfil(future: Future[T], function: Callable[[], T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(function())
    except Exception as error:
        future.set_exception(error)


def _refuse(future: Future[Any], error: EngineStopped) -> None:
    if future.set_running_or_notify_cancel():
        future.set_exception(error)
