"""Server-sent events, and what both kinds of response need: to notice that nobody listens any more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gamaneh.server.api_errors import ApiError

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"

KEEP_ALIVE = b": still here\n\n"
"""A comment, which clients pass over. It keeps those in between from ending a connection that is silent."""

SILENCE_SECONDS = 15.0
"""How long a stream may say nothing, while its request waits or its prompt is read."""


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns, unless the client goes away first: then it is cancelled.

    Raises:
        ClientDisconnect: the client went away.
    """
    working, gone = asyncio.ensure_future(work), asyncio.ensure_future(_disconnect(receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def event(data: Mapping[str, Any], name: str | None = None) -> bytes:
    """One event as it goes over the wire."""
    head = "" if name is None else f"event: {name}\n"
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f"{head}data: {text}\n\n".encode()


class EventStream(Response):
    """A response of chunks, `[DONE]` after the last one.

    An error in a stream that has begun becomes an event `error`, and the stream ends without `[DONE]`.

    Args:
        chunks: what to send.
        close: called with the error, if there was one, when the response is over, however it ended.
        silence: seconds without a chunk after which a comment is sent.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        chunks: AsyncGenerator[dict[str, Any]],
        close: Callable[[BaseException | None], None],
        silence: float = SILENCE_SECONDS,
    ) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._chunks, self._close, self._silence = chunks, close, silence

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        failure: BaseException | None = None
        try:
            failure = await until_disconnect(receive, self._send(send))
        except BaseException as error:
            failure = error
            if not isinstance(error, ClientDisconnect):
                raise
        finally:
            self._close(failure)

    async def _send(self, send: Send) -> ApiError | None:
        """Send everything; an error that was put into the stream is returned."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        failure: ApiError | None = None
        try:
            async with aclosing(self._chunks), aclosing(self._parts()) as parts:
                async for part in parts:
                    await send({"type": "http.response.body", "body": part, "more_body": True})
            last = DONE
        except ApiError as error:
            failure, last = error, event(error.body(), "error")
        await send({"type": "http.response.body", "body": last, "more_body": False})
        return failure

    async def _parts(self) -> AsyncGenerator[bytes]:
        """The chunks as events, with comments where they let long wait for themselves."""
        while True:
            upcoming = asyncio.ensure_future(anext(self._chunks, None))
            try:
                while not (await asyncio.wait({upcoming}, timeout=self._silence))[0]:
                    yield KEEP_ALIVE
                chunk = upcoming.result()
            finally:
                upcoming.cancel()
                await asyncio.gather(upcoming, return_exceptions=True)
            if chunk is None:
                return
            yield event(chunk)
