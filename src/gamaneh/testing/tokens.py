"""Tokenizers that need no files: one of the 256 bytes and a few special tokens, and one of any pieces."""

from __future__ import annotations

import re
from collections.abc import Sequence

BOS_ID = 256
EOS_ID = 257
PAD_ID = 258
BYTE_VOCAB = 260


class ByteTokenizer:
    """One token per UTF-8 byte; needs no files."""

    vocab_size = BYTE_VOCAB
    bos_id: int | None = BOS_ID
    eos_ids: tuple[int, ...] = (EOS_ID,)
    reasons = False
    takes_tools = True
    special_ids: frozenset[int] = frozenset(range(256, BYTE_VOCAB))
    absent_ids: frozenset[int] = frozenset()

    def encode(self, text: str, special: bool = True) -> list[int]:
        """UTF-8 bytes; `special` changes nothing, as no token is added."""
        return list(text.encode())

    def fewest_tokens(self, text: str) -> int:
        """One for each byte."""
        return len(text.encode())

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of the byte tokens; an incomplete sequence becomes the replacement character."""
        plain = bytes(token for token in ids if token < 256)
        if skip_special or len(plain) == len(ids):
            return plain.decode(errors="replace")
        return "".join(self.token_text(token) for token in ids)

    def token_text(self, token: int) -> str:
        return chr(token) if token < 128 else f"<{token}>"

    def token_bytes(self, token: int) -> bytes:
        """The byte of a token; special tokens have their text."""
        return bytes([token]) if token < 256 else self.token_text(token).encode()

    def vocab(self) -> dict[str, int]:
        return {self.token_text(token): token for token in range(BYTE_VOCAB)}


class PieceTokenizer:
    """A tokenizer of given pieces: of those that a text goes on with the longest comes next. Needs no files.

    Args:
        pieces: what each token stands for, id by id; bytes may be parts of a character.
        special: names of special tokens, whose ids come behind; the first ends an output.
        begin: the one of them that comes in front of a text.
        adds_space: a space is put in front of a text, as SentencePiece does.
    """

    reasons = False
    takes_tools = True
    absent_ids: frozenset[int] = frozenset()

    def __init__(
        self,
        pieces: Sequence[str | bytes],
        *,
        special: Sequence[str] = ("<end>",),
        begin: str | None = None,
        adds_space: bool = False,
    ) -> None:
        ordinary = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        self._pieces = [*ordinary, *(name.encode() for name in special)]
        self._ids = {piece: token for token, piece in enumerate(ordinary)}
        self._special = {name: len(ordinary) + at for at, name in enumerate(special)}
        self._longest = max(map(len, ordinary))
        self._adds_space = adds_space
        self.vocab_size = len(self._pieces)
        self.special_ids = frozenset(self._special.values())
        self.eos_ids: tuple[int, ...] = (self._special[special[0]],)
        self.bos_id: int | None = None if begin is None else self._special[begin]

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Special tokens that are written in the text are recognised.

        Raises:
            ValueError: there is no piece for some of it.
        """
        tokens = [self.bos_id] if special and self.bos_id is not None else []
        for part in re.split(f"({'|'.join(map(re.escape, self._special))})", text):
            tokens += [self._special[part]] if part in self._special else self._cut(part)
        return tokens

    def fewest_tokens(self, text: str) -> int:
        """As if all pieces were the longest."""
        return len(text.encode()) // self._longest

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of the tokens; an incomplete character becomes the replacement character."""
        kept = [token for token in ids if not (skip_special and token in self.special_ids)]
        return b"".join(map(self.token_bytes, kept)).decode(errors="replace")

    def token_bytes(self, token: int) -> bytes:
        """What a token stands for; nothing if there is no such token."""
        return self._pieces[token] if token < self.vocab_size else b""

    def token_text(self, token: int) -> str:
        return self.token_bytes(token).decode(errors="replace")

    def vocab(self) -> dict[str, int]:
        """Pieces by id, bytes written as the characters of these numbers."""
        return {piece.decode("latin-1"): token for token, piece in enumerate(self._pieces)}

    def _cut(self, text: str) -> list[int]:
        rest = (" " if self._adds_space and text else "").encode() + text.encode()
        tokens = []
        while rest:
            size = next((size for size in range(self._longest, 0, -1) if rest[:size] in self._ids), 0)
            if size == 0:
                raise ValueError(f"pieces must begin every text, got none for {rest!r}")
            tokens.append(self._ids[rest[:size]])
            rest = rest[size:]
        return tokens
