"""Colours for tokens by their origin."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from rich.text import Text

from gamaneh.core import Origin

STYLES = {
    Origin.ACCEPTED: "green",
    Origin.CORRECTION: "yellow",
    Origin.BONUS: "cyan",
    Origin.PLAIN: "default",
}
_UNFINISHED = "\ufffd"
_MOST_TOKENS = 64
_KEPT_TOKENS = 16

Decode = Callable[[Sequence[int]], str]


def legend() -> Text:
    """One line that explains the colours."""
    return Text(" ").join(Text(f" {origin} ", f"reverse {style}") for origin, style in STYLES.items())


class Painter:
    """Cuts a growing text into the pieces of its tokens and colours each by its token's origin.

    A character that spans several tokens has the colour of the last of them.
    """

    def __init__(self, decode: Decode) -> None:
        self._pieces = _Pieces(decode)
        self._waiting: deque[tuple[str, Origin]] = deque()
        self._last = Origin.PLAIN

    def paint(self, tokens: Sequence[int], origins: Sequence[Origin], text: str) -> Text:
        """Colour the next part of the text; it may end before its tokens do, or after."""
        for token, origin in zip(tokens, origins, strict=True):
            self._waiting.append((self._pieces.push(token), origin))
            self._last = origin
        painted = Text()
        while text and self._waiting:
            piece, origin = self._waiting.popleft()
            painted.append(text[: len(piece)], STYLES[origin])
            if len(piece) > len(text):
                self._waiting.appendleft((piece[len(text) :], origin))
            text = text[len(piece) :]
        return painted.append(text, STYLES[self._last])


class _Pieces:
    """Text that each token adds; none while a character is unfinished."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._done = ""

    def push(self, token: int) -> str:
        self._tokens.append(token)
        text = self._decode(self._tokens)
        if text.endswith(_UNFINISHED):
            return ""
        piece = text[len(self._done) :]
        self._done = text
        if len(self._tokens) > _MOST_TOKENS:
            self._tokens = self._tokens[-_KEPT_TOKENS:]
            self._done = self._decode(self._tokens)
        return piece
