"""From start to end: the socket, the web server, the drain, and what happens when the engine fails."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import uvicorn

from gamaneh.errors import InvalidOption
from gamaneh.server.app import build_app
from gamaneh.server.logs import log
from gamaneh.server.service import Service

LAST_WORDS_SECONDS = 2
"""How long responses may take to end after the drain, in which their answers have ended already."""

TICK_SECONDS = 0.02

HURRY_SECONDS = 0.5
"""The same when a second signal has come."""

KEEP_ALIVE_SECONDS = 65
"""Longer than the usual minute of proxies, so that it is not this side that closes a connection in use."""


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to an address, so that a port that is taken is found out before a model is loaded.

    Raises:
        InvalidOption: the address cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise InvalidOption("host", f"must be an address of this machine ({error})", host) from error
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
    except OSError as error:
        bound.close()
        raise InvalidOption("port", f"must be free at {host} ({error.strerror})", port) from error
    return bound


@contextmanager
def _signals_end_quietly() -> Iterator[None]:
    """The web server raises a signal once more when it has obeyed it; nobody needs to die of that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Server(uvicorn.Server):
    """Serves until it is told to end, or until some seconds after its engine failed.

    Args:
        service: its engine is started and stopped here.
    """

    def __init__(self, service: Service) -> None:
        self.service = service
        config = uvicorn.Config(
            build_app(service),
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=LAST_WORDS_SECONDS,
        )
        super().__init__(config)
        self._signals = 0

    def serve_on(self, bound: socket.socket) -> bool:
        """Serve at a bound socket until the end; False when the engine failed or a second signal cut it short."""
        self.service.engine.start()
        try:
            with _signals_end_quietly():
                self.run(sockets=[bound])
        finally:
            if not self.force_exit:  # else its thread ends with the process, whatever it is at
                self.service.engine.stop()
        return self.service.engine.failure is None and not self.force_exit

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal begins the end, the second one hurries it, whichever they are."""
        self._signals += 1
        super().handle_exit(sig, frame)
        self.force_exit = self.force_exit or self._signals > 1

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for bound in sockets or []:
            host, port = bound.getsockname()[:2]
            log("listening", host=host, port=port, model=self.service.model)

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._failed_long_ago()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Refuse what is new while the engine finishes what it has, then close."""
        options, engine = self.service.options, self.service.engine
        self.service.draining = True
        log("draining", seconds=options.drain_seconds)
        engine.drain(options.drain_seconds)
        grace = time.monotonic() + (options.grace_seconds if self._signals else 0.0)
        while (engine.alive or time.monotonic() < grace) and not self.force_exit:
            await asyncio.sleep(TICK_SECONDS)
        if self.force_exit:
            await self._hurry()
        await super().shutdown(sockets)

    async def _hurry(self) -> None:
        """Tell everybody that it is over, and wait no longer than that takes."""
        log("cut short", logging.WARNING)
        self.service.engine.drain(0)
        until = time.monotonic() + HURRY_SECONDS
        while self.server_state.tasks and time.monotonic() < until:
            await asyncio.sleep(TICK_SECONDS)

    def _failed_long_ago(self) -> bool:
        engine = self.service.engine
        if engine.failure is None or engine.ended_at is None:
            return False
        if time.monotonic() - engine.ended_at < self.service.options.failure_seconds:
            return False
        log("the engine has failed", logging.ERROR, failure=repr(engine.failure))
        return True
