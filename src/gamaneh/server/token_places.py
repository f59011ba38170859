"""Which part of an answer's text each of its tokens holds."""

from __future__ import annotations

from collections.abc import Sequence

from gamaneh.core import StepOutput
from gamaneh.engine.detokenizer import Detokenizer, TextDecoder


class TokenPlaces:
    """The tokens of one answer by the characters that each of them completed.

    A token without text of its own, such as a part of a character, goes with the next one that has some. How
    tokens come together in steps makes no difference, nor does text that is held back for a stop text.

    Args:
        prompt: token ids in front of the answer.
    """

    def __init__(self, tokenizer: TextDecoder, prompt: Sequence[int]) -> None:
        self._detokenizer = Detokenizer(tokenizer, (), prompt)
        self._places: list[tuple[range, int]] = []
        self._end = self._waiting = 0

    def add(self, output: StepOutput) -> None:
        """The tokens of one step."""
        for token in output.tokens:
            self._waiting += 1
            self._place(self._detokenizer.feed([token]).text)
        if output.finish_reason is not None:
            self._place(self._detokenizer.flush())

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
