"""Streams that wait for what they send."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from gamaneh.server.sse import DONE, KEEP_ALIVE, EventStream, event


async def bodies(waits: int) -> list[bytes]:
    """What is sent by a stream whose only chunk comes after so many silences."""
    sent: list[bytes] = []
    due = asyncio.Event()

    async def chunks() -> AsyncGenerator[dict[str, Any]]:
        await due.wait()
        yield {"a": 1}

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        if sent.count(KEEP_ALIVE) == waits:
            due.set()

    async def receive() -> Any:
        await asyncio.get_running_loop().create_future()

    if waits == 0:
        due.set()
    stream = EventStream(chunks(), lambda error: None, silence=0.001 if waits else 60.0)
    await stream({"type": "http"}, receive, send)
    return [body for body in sent if body]


def test_a_silent_stream_says_that_it_is_still_there() -> None:
    sent = asyncio.run(bodies(waits=3))
    assert sent[:3] == [KEEP_ALIVE] * 3
    assert [body for body in sent if body != KEEP_ALIVE] == [event({"a": 1}), DONE]


def test_a_stream_that_has_something_to_say_says_nothing_else() -> None:
    assert asyncio.run(bodies(waits=0)) == [event({"a": 1}), DONE]
