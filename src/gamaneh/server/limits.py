"""How much is let in: a bounded queue for all, a bound for each key, and bounded bodies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass

from gamaneh.server.auth import Client
from gamaneh.server.errors import ApiError

SMOOTHING = 0.1
FIRST_SECONDS = 1.0
"""Seconds that an answer is taken to last before any was measured."""


@dataclass(slots=True)
class Ticket:
    """Room for some answers, which must be given back."""

    gate: Gate
    client: Client
    count: int

    def grow(self, count: int) -> None:
        """More answers than was known at first.

        Raises:
            ApiError: 429, there is no room for them.
        """
        self.gate.take(self.client, count)
        self.count += count

    def release(self, seconds: float | None = None) -> None:
        """Give the room back, once; `seconds` is how long the answers took."""
        self.gate.give_back(self.client, self.count, seconds)
        self.count = 0


class Gate:
    """Counts the answers that are being made or waited for.

    Args:
        capacity: most of them.
        at_once: how many the engine makes at the same time.
        per_key: most for one key; None for no such bound.
    """

    def __init__(self, capacity: int, at_once: int, per_key: int | None = None) -> None:
        self.capacity, self.at_once, self.per_key = capacity, at_once, per_key
        self.taken = 0
        self.refused = 0
        self._by_client: Counter[str] = Counter()
        self._seconds = FIRST_SECONDS

    def enter(self, client: Client, count: int = 1) -> Ticket:
        """Let a request in.

        Raises:
            ApiError: 429, there is no room; it says when to come back.
        """
        self.take(client, count)
        return Ticket(self, client, count)

    def take(self, client: Client, count: int) -> None:
        """Take room for `count` answers. See `enter`."""
        if self.per_key is not None and client.name and self._by_client[client.name] + count > self.per_key:
            raise self._busy(
                f"this key may have at most {self.per_key} answers in the making", code="concurrency_exceeded"
            )
        if self.taken + count > self.capacity:
            raise self._busy(
                f"the server is busy: it takes at most {self.capacity} answers in the making", code="queue_full"
            )
        self.taken += count
        self._by_client[client.name] += count

    def give_back(self, client: Client, count: int, seconds: float | None) -> None:
        """Give back what `take` took."""
        self.taken -= count
        self._by_client[client.name] -= count
        if self._by_client[client.name] <= 0:
            del self._by_client[client.name]
        if seconds is not None:
            self._seconds += SMOOTHING * (seconds - self._seconds)

    def retry_after(self) -> int:
        """Whole seconds until there should be room: those that one answer takes, for each batch in the queue."""
        batches = max(1.0, (self.taken - self.at_once) / self.at_once)
        return min(60, max(1, math.ceil(self._seconds * min(batches, 2.0))))

    def _busy(self, message: str, code: str) -> ApiError:
        self.refused += 1
        return ApiError(429, message, code=code, headers={"Retry-After": str(self.retry_after())})


async def read_body(chunks: AsyncIterator[bytes], declared: str | None, limit: int) -> bytes:
    """The body of a request, as long as it is at most `limit` bytes; `declared` is its Content-Length.

    Raises:
        ApiError: 413, it is longer.
    """
    if declared is not None and declared.isdigit() and int(declared) > limit:
        raise _too_large(declared, limit)
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > limit:
            raise _too_large(f"more than {limit}", limit)
    return bytes(body)


def _too_large(size: str, limit: int) -> ApiError:
    return ApiError(413, f"the body must have at most {limit} bytes, got {size}", code="request_too_large")
