"""How single tokens are shown: their text, their bytes, and log-probabilities that JSON can hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gamaneh.core import StepOutput

LOWEST = -9999.0
"""Stands for minus infinity, which JSON does not have."""


class SupportsTokens(Protocol):
    """The part of a tokenizer that is needed to show its tokens."""

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str: ...

    def token_bytes(self, token: int) -> bytes: ...


def shown(tokenizer: SupportsTokens, token: int, cut: int = 0) -> str:
    """Text of one token; a part of a character is spelled as `bytes:` and its hexadecimal codes.

    Args:
        cut: bytes at its end that belong to a stop text and are left out.
    """
    data = token_bytes(tokenizer, token, cut)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def token_bytes(tokenizer: SupportsTokens, token: int, cut: int = 0) -> bytes:
    """Bytes of one token without the last `cut` ones."""
    data = tokenizer.token_bytes(token)
    return data[: len(data) - cut]


def cuts(output: StepOutput) -> list[int]:
    """For each token that a step tells, the bytes at its end that belong to a stop text."""
    return [*[0] * (len(output.tokens) - 1), output.cut][: len(output.tokens)]


def finite(logprob: float) -> float:
    """The log-probability, no lower than JSON allows."""
    return max(logprob, LOWEST)
