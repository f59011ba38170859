"""Colours for tokens by their origin."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter

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


DRAFTER_STYLES = ("green", "cyan", "magenta", "yellow", "blue", "red")


def paint_drafters(tokens: Sequence[tuple[str, str]], colored: bool) -> Text:
    """The text of tokens, each accepted run marked by who drafted it.

    Args:
        tokens: text, and who drafted it; empty where nobody did.
        colored: mark by colours with a legend; otherwise by `name[...]` around each run.
    """
    names = list(dict.fromkeys(name for _, name in tokens if name))
    styles = {name: DRAFTER_STYLES[at % len(DRAFTER_STYLES)] for at, name in enumerate(names)}
    painted = Text()
    for name, run in groupby(tokens, key=itemgetter(1)):
        text = "".join(piece for piece, _ in run)
        if not name:
            painted.append(text)
        elif colored:
            painted.append(text, f"underline {styles[name]}")
        else:
            painted.append(f"{name}[{text}]")
    if colored and names:
        painted.append("\n")
        for name in names:
            painted.append(f" {name} ", f"reverse {styles[name]}").append(" ")
    return painted


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
