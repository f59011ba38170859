"""Blanks between tokens of JSON: a grammar leaves them free, a text keeps to its own habit."""

from __future__ import annotations

import re

REMEMBERED = 512
"""Bytes at the end of a text in which its last line begins, unless it is very long."""

_OPENED = re.compile(rb"\{([ \n\r\t]*)(?=[^ \n\r\t])")
_FOLLOWED = re.compile(rb'((?<="):|,(?= *"))( *)(?=[^ \n\r\t])')
_BLANKS = b" \n\r\t"


class Blanks:
    """Which blanks a text puts between tokens of JSON, from those that it put there last.

    It begins with those of most texts: one space behind a comma or a colon, and all in one line.

    Attributes:
        end: the last bytes of the text.
    """

    def __init__(self) -> None:
        self.end = b""
        self._behind = {b",": b" ", b":": b" "}
        self._indentation: bytes | None = None  # of one level; None where all is in one line

    def read(self, text: bytes) -> None:
        """Read on."""
        self.end = (self.end + text)[-REMEMBERED:]
        for opened in _OPENED.finditer(self.end):
            outer, lines = _last_line_blanks(self.end[: opened.start()]), opened[1].split(b"\n")
            self._indentation = lines[-1].removeprefix(outer) if len(lines) > 1 else None
        self._behind |= dict(_FOLLOWED.findall(self.end))

    def before(self, piece: bytes, text: bytes) -> bytes:
        """The blanks that are missing between `text` and `piece`, which is not empty."""
        bare = text.rstrip(_BLANKS)
        usual, there = self._usual(bare, piece), text[len(bare) :]
        return usual.removeprefix(there) if usual.startswith(there) else b""

    def _usual(self, text: bytes, piece: bytes) -> bytes:
        last, opens, closes = text[-1:], text.endswith((b"{", b"[")), piece.startswith((b"}", b"]"))
        if self._indentation is None or last == b":" or not (opens or closes or last == b","):
            return self._behind.get(last, b"")
        outer = _last_line_blanks(text)
        if opens == closes:  # a comma, or nothing within the brackets
            return b"" if opens else b"\n" + outer
        return b"\n" + (outer + self._indentation if opens else outer.removesuffix(self._indentation))


def _last_line_blanks(text: bytes) -> bytes:
    line = text.rpartition(b"\n")[2]
    return line[: len(line) - len(line.lstrip(_BLANKS))]
