"""Reasoning in front of an answer: `<think>...</think>answer`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gamaneh.server.markers import BLANKS, certain_length

OPEN, CLOSE = "<think>", "</think>"


class Split(NamedTuple):
    """What one piece of text has brought; the reasoning comes first."""

    reasoning: str = ""
    content: str = ""


class ReasoningParser:
    """Tells reasoning from content while the text comes, wherever it is cut.

    Reasoning can only come first: later on the markers are ordinary text. Blanks that touch a marker
    belong to it.

    Args:
        inside: the prompt has opened the reasoning already.
    """

    def __init__(self, *, inside: bool = False) -> None:
        self._rest = ""
        self._read = self._start = self._length = 0
        self._skipping = inside
        self._state: Callable[[], Split] = self._think if inside else self._begin

    @property
    def part(self) -> range:
        """Which characters of the whole text are the reasoning, as far as that is certain."""
        return range(self._start, self._start + self._length)

    @property
    def ended(self) -> bool:
        """Whether no more reasoning can come."""
        return self._state == self._answer

    def feed(self, text: str) -> Split:
        """Read more text and return what has become certain."""
        self._rest += text
        self._read += len(text)
        return self._counted(self._state())

    def finish(self) -> Split:
        """What was held back, when no more text comes."""
        rest, self._rest = self._rest, ""
        if self._skipping and not rest.strip(BLANKS):
            return Split()
        return self._counted(Split(reasoning=rest) if self._state == self._think else Split(content=rest))

    def _counted(self, split: Split) -> Split:
        self._length += len(split.reasoning)
        return split

    def _begin(self) -> Split:
        text = self._rest.lstrip(BLANKS)
        if text.startswith(OPEN):
            self._rest = text.removeprefix(OPEN)
            self._state, self._skipping = self._think, True
            return self._think()
        if OPEN.startswith(text):
            return Split()
        self._state = self._answer
        return self._answer()

    def _think(self) -> Split:
        self._skip()
        if not self._length:
            self._start = self._read - len(self._rest)
        before, found, after = self._rest.partition(CLOSE)
        if found:
            self._rest = after
            self._state, self._skipping = self._answer, True
            return Split(before.rstrip(BLANKS), self._answer().content)
        return Split(reasoning=self._take(certain_length(self._rest, CLOSE)))

    def _answer(self) -> Split:
        self._skip()
        return Split(content=self._take(len(self._rest)))

    def _skip(self) -> None:
        """Leave out the blanks that follow a marker."""
        if self._skipping:
            self._rest = self._rest.lstrip(BLANKS)
            self._skipping = not self._rest

    def _take(self, length: int) -> str:
        taken, self._rest = self._rest[:length], self._rest[length:]
        return taken


def opens_reasoning(prompt: str) -> bool:
    """Whether a prompt ends where the reasoning has begun, as some chat templates make it."""
    return prompt.rstrip(BLANKS).endswith(OPEN)
