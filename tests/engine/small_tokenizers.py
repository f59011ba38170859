"""Real tokenizers of a few hundred tokens, as a file would bring them: SentencePiece and byte-level."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from tokenizers.pre_tokenizers import ByteLevel

from gamaneh.models.gguf_tokenizer import backend_from_metadata
from gamaneh.models.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6


def sentence_piece(words: Sequence[str] = ("▁the", "▁cat", "▁sat", "▁Hello", "▁spaces", "lo", "▁سلام")) -> Tokenizer:
    """With begin token, byte fallback, and a space in front of every text."""
    letters = sorted({letter for word in words for letter in word} | set("▁abcdefghijklmnopqrstuvwxyz"))
    pieces = [*letters, *_beginnings(words)]
    head = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL), *((f"<0x{at:02X}>", BYTE) for at in range(256))]
    entries = head + [(piece, NORMAL) for piece in pieces]
    keys = {
        "model": "llama",
        "tokens": [piece for piece, _ in entries],
        "token_type": [kind for _, kind in entries],
        "scores": [0.0] * len(head) + [-float(at) for at in range(len(pieces))],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return _made({"general.architecture": "llama"}, keys)


def byte_level(words: Sequence[str] = ("Ġthe", "Ġsat", "Ġca", "ello", "paces", "Ġand")) -> Tokenizer:
    """With an end token, and one that a chat would have."""
    joined = _beginnings(words)
    merges = [f"{before[-len(before) :]} {after[len(before) :]}" for before, after in _steps(words)]
    control = ["<|endoftext|>", "<|im_start|>"]
    tokens = [*control, *sorted(ByteLevel.alphabet()), *joined]
    keys = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [CONTROL] * len(control) + [NORMAL] * (len(tokens) - len(control)),
        "merges": list(dict.fromkeys(merges)),
        "eos_token_id": 0,
    }
    return _made({}, keys)


def _made(metadata: dict[str, object], keys: dict[str, object]) -> Tokenizer:
    return Tokenizer(backend_from_metadata(metadata | {f"tokenizer.ggml.{key}": value for key, value in keys.items()}))


def _steps(words: Sequence[str]) -> list[tuple[str, str]]:
    """A word becomes a token letter by letter."""
    return [step for word in words for step in pairwise(word[:size] for size in range(1, len(word) + 1))]


def _beginnings(words: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(after for _, after in _steps(words)))
