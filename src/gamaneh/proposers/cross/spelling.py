"""Texts in the tokens of one tokenizer, with the place of each token in the text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

_ANCHOR = "\n"
"""In front of a text it takes the space that a tokenizer adds, and hardly ever becomes one token with the text."""


class SupportsSpelling(Protocol):
    """What a bridge needs of a tokenizer."""

    bos_id: int | None

    @property
    def special_ids(self) -> frozenset[int]: ...

    def encode(self, text: str, special: bool = True) -> list[int]: ...

    def token_bytes(self, token: int) -> bytes: ...

    def vocab(self) -> dict[str, int]: ...


@dataclass(frozen=True, slots=True)
class Spelling:
    """A text in tokens.

    Args:
        tokens: their ids.
        ends: for each token, how many bytes of the text it and those before it stand for; None where the
            tokens are not the text, byte for byte, as when a tokenizer changes what it reads.
    """

    tokens: list[int]
    ends: list[int] | None

    def behind(self, start: int) -> Spelling | None:
        """The part from byte `start` on; None where a token stands across it, or where that is not known."""
        if self.ends is None or start not in (0, *self.ends):
            return None
        first = sum(end <= start for end in self.ends)
        return Spelling(self.tokens[first:], [end - start for end in self.ends[first:]])


class Speller:
    """Spells parts of texts as the tokenizer would spell them within a longer text.

    What looks like a special token is spelled as the characters that it is made of. A space that a
    tokenizer puts in front of every text is not put in front of a part.
    """

    def __init__(self, tokenizer: SupportsSpelling) -> None:
        self.tokenizer = tokenizer
        self._special = tokenizer.special_ids
        self.adds_space = self.joined(tokenizer.encode("a", special=False)) == b" a"

    def joined(self, tokens: Sequence[int]) -> bytes:
        """The bytes that these tokens stand for."""
        return b"".join(map(self.tokenizer.token_bytes, tokens))

    def spell(self, text: str, *, inside: bool = False) -> Spelling:
        """The tokens of a text that is not empty.

        Args:
            inside: it goes on from another text, or begins with the space that the tokenizer adds.
        """
        if not inside or not self.adds_space:
            return self._spelling(self._encode(text), text)
        if text[0] == " " and len(text) > 1:
            return self._spelling(self._encode(text[1:]), text)
        anchored = self._spelling(self._encode(_ANCHOR + text), _ANCHOR + text)
        return anchored.behind(len(_ANCHOR)) or self._spelling(self._encode(text), text)

    def _spelling(self, tokens: list[int], text: str) -> Spelling:
        """Where each token ends, in a text with the added space or without."""
        ends = list(accumulate(len(self.tokenizer.token_bytes(token)) for token in tokens))
        wanted, spelled = text.encode(), self.joined(tokens)
        if spelled == wanted:
            return Spelling(tokens, ends)
        if self.adds_space and spelled == b" " + wanted:
            return Spelling(tokens, [end - 1 for end in ends])
        return Spelling(tokens, None)

    def _encode(self, text: str) -> list[int]:
        tokens = self.tokenizer.encode(text, special=False)
        special = next((token for token in tokens if token in self._special), None)
        if special is None:
            return tokens
        # Cut inside what would be read as a special token, and it is not read so.
        name = self.tokenizer.token_bytes(special).decode(errors="replace")
        cut = text.find(name) + 1
        if cut == 0 or len(name) < 2:
            return [token for token in tokens if token not in self._special]
        return [*self._encode(text[:cut]), *self.spell(text[cut:], inside=True).tokens]
