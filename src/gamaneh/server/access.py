"""Who asks and how much is let in: API keys, of which only hashes are known here, and room for answers."""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gamaneh.core import ANYBODY
from gamaneh.errors import InvalidOption
from gamaneh.server.api_errors import ApiError

VARIABLE = "GAMANEH_API_KEYS"
"""Environment variable with more keys: `NAME=SHA256`, separated by commas or spaces."""

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Client:
    """Whoever holds one key.

    Args:
        name: for logs and limits; empty where no key is asked for.
    """

    name: str = ""

    def owns(self, salt: str) -> bool:
        """Whether a request with this salt is this client's; where no key is asked for, everything is everybody's."""
        return not self.name or salt.partition("\0")[0] == self.name

    def salt(self, more: str | None, *, share_answers: bool = False) -> str:
        """Salt of cached prefixes and of earlier answers: no two clients share them, nor does one under two `more`.

        Args:
            share_answers: callers without a key and without `more` share their answers, not only their prefixes.
        """
        if self.name or more:
            return f"{self.name}\0{more}"
        return "" if share_answers else ANYBODY


class KeyRing:
    """Knows clients by the SHA-256 of their keys. Without any key, everybody is served.

    Args:
        entries: `NAME=SHA256` each, the hash in hexadecimal.

    Raises:
        InvalidOption: an entry is not of that form, or a name comes twice.
    """

    def __init__(self, entries: Iterable[str] = ()) -> None:
        self._hashes: dict[str, bytes] = {}
        for entry in entries:
            name, _, digest = entry.partition("=")
            if not name or not _SHA256.fullmatch(digest.lower()) or name in self._hashes:
                rule = "must be NAME=SHA256 with a name of its own and 64 hexadecimal digits"
                raise InvalidOption("api_key", rule, f"{name}=...")
            self._hashes[name] = bytes.fromhex(digest)

    @classmethod
    def from_environment(cls, entries: Iterable[str] = (), environment: Mapping[str, str] = os.environ) -> KeyRing:
        """Those of the options and those of the environment together."""
        return cls([*entries, *environment.get(VARIABLE, "").replace(",", " ").split()])

    def __len__(self) -> int:
        return len(self._hashes)

    def identify(self, headers: Mapping[str, str]) -> Client:
        """The client that the header `Authorization`, or else `x-api-key`, names.

        Raises:
            ApiError: 401, there is no such key.
        """
        if not self._hashes:
            return Client()
        scheme, _, key = (headers.get("authorization") or f"Bearer {headers.get('x-api-key', '')}").partition(" ")
        digest = hashlib.sha256(key.strip().encode()).digest()
        # All hashes are compared, so that the time tells nothing about where a match is.
        matches = [name for name, known in self._hashes.items() if hmac.compare_digest(known, digest)]
        if scheme.lower() != "bearer" or not matches:
            raise ApiError(
                401,
                "an API key of this server must be given as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return Client(matches[0])


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

    def most_for(self, client: Client) -> int:
        """Most answers that one client can ever have at once."""
        return self.capacity if self.per_key is None or not client.name else min(self.capacity, self.per_key)

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
