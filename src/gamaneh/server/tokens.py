"""How single tokens are shown: their text, their bytes, and log-probabilities that JSON can hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

LOWEST = -9999.0
"""Stands for minus infinity, which JSON does not have."""


class SupportsTokens(Protocol):
    """The part of a tokenizer that is needed to show its tokens."""

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str: ...

    def token_bytes(self, token: int) -> bytes: ...


def shown(tokenizer: SupportsTokens, token: int) -> str:
    """Text of one token; a part of a character is spelled as `bytes:` and its hexadecimal codes."""
    data = tokenizer.token_bytes(token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def finite(logprob: float) -> float:
    """The log-probability, no lower than JSON allows."""
    return max(logprob, LOWEST)
