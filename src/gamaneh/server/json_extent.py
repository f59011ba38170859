"""Where a JSON object ends, in text that comes in pieces."""

from __future__ import annotations

from enum import Enum, auto

_CLOSERS = {"{": "}", "[": "]"}
_OUTSIDE = frozenset(' \t\r\n{}[]:,"+-.0123456789Etruefalsn')
"""What may stand outside of texts: punctuation, numbers and the letters of true, false and null."""


class State(Enum):
    OPEN = auto()
    CLOSED = auto()
    BROKEN = auto()


class JsonExtent:
    """Follows brackets and texts to the end of an object; what stands between them is not judged.

    Args:
        closers: brackets that are open already, the innermost last.
    """

    def __init__(self, closers: str = "") -> None:
        self._closers = list(closers)
        self._in_text = self._escaped = False
        self.state = State.OPEN

    def take(self, text: str) -> int:
        """Read on, and return how many characters belong to the object.

        `state` tells whether it goes on (`OPEN`) or why it ends there: with its last bracket
        (`CLOSED`) or before a character that it cannot have (`BROKEN`).
        """
        for at, character in enumerate(text):
            self._read(character)
            if self.state is not State.OPEN:
                return at + (self.state is State.CLOSED)
        return len(text)

    def _read(self, character: str) -> None:
        if self._in_text:
            self._read_text(character)
        elif character not in _OUTSIDE or (not self._closers and character != "{"):
            self.state = State.BROKEN
        elif character == '"':
            self._in_text = True
        elif character in _CLOSERS:
            self._closers.append(_CLOSERS[character])
        elif character in "}]":
            self._close(character)

    def _read_text(self, character: str) -> None:
        if self._escaped or character == "\\":
            self._escaped = not self._escaped
        elif character == '"':
            self._in_text = False

    def _close(self, character: str) -> None:
        if self._closers.pop() != character:
            self.state = State.BROKEN
        elif not self._closers:
            self.state = State.CLOSED
