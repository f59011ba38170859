"""A byte tokenizer: 256 bytes and a few special tokens."""

from __future__ import annotations

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
    special_ids: frozenset[int] = frozenset(range(256, BYTE_VOCAB))

    def encode(self, text: str, special: bool = True) -> list[int]:
        """UTF-8 bytes; `special` changes nothing, as no token is added."""
        return list(text.encode())

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
