"""Looking for a marker in text that comes in pieces of any size."""

from __future__ import annotations

BLANKS = " \t\r\n"
"""Whitespace of JSON. Where it touches a marker, it belongs to the marker."""


def certain_length(text: str, marker: str) -> int:
    """Length of `text` without an ending that may be the beginning of `marker`, and blanks before that."""
    longest = min(len(text), len(marker) - 1)
    begun = next((size for size in range(longest, 0, -1) if text.endswith(marker[:size])), 0)
    return len(text[: len(text) - begun].rstrip(BLANKS))
