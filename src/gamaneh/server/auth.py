"""Who asks: API keys, of which only hashes are known here."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gamaneh.errors import InvalidOption
from gamaneh.server.errors import ApiError

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

    def salt(self, more: str | None) -> str:
        """Salt of the prefix cache: no two clients share prefixes, nor does one under two values of `more`."""
        return f"{self.name}\0{more}" if self.name or more else ""


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

    def identify(self, authorization: str | None) -> Client:
        """The client that an `Authorization` header names.

        Raises:
            ApiError: 401, there is no such key.
        """
        if not self._hashes:
            return Client()
        scheme, _, key = (authorization or "").partition(" ")
        digest = hashlib.sha256(key.strip().encode()).digest()
        # All hashes are compared, so that the time tells nothing about where a match is.
        matches = [name for name, known in self._hashes.items() if hmac.compare_digest(known, digest)]
        if scheme.lower() != "bearer" or not matches:
            raise ApiError(
                401,
                "an API key must be given as 'Authorization: Bearer KEY', and be one of this server's",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return Client(matches[0])
