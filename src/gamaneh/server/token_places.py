"""Which part of an answer's text each of its tokens holds."""

from __future__ import annotations

from gamaneh.core import StepOutput


class TokenPlaces:
    """The tokens of one answer by the characters that each of them completed.

    A token without text of its own, such as a part of a character, goes with the next one that has some. How
    tokens come together in steps makes no difference.
    """

    def __init__(self) -> None:
        self._places: list[tuple[range, int]] = []
        self._end = self._waiting = 0

    def add(self, output: StepOutput) -> None:
        """The tokens of one step."""
        for text in output.texts:
            self._waiting += 1
            self._place(text)

    def count(self, part: range) -> int:
        """Tokens that hold at least one of these characters."""
        return sum(
            tokens for place, tokens in self._places if max(place.start, part.start) < min(place.stop, part.stop)
        )

    def _place(self, text: str) -> None:
        if text:
            start, self._end = self._end, self._end + len(text)
            self._places.append((range(start, self._end), self._waiting))
            self._waiting = 0
