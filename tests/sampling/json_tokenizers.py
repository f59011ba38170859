"""Small tokenizers of three kinds that know some pieces of JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tokenizers.pre_tokenizers import ByteLevel

from gamaneh.models.gguf_tokenizer import BYTE, CONTROL, backend_from_metadata
from gamaneh.models.tokenizer import Tokenizer
from gamaneh.sampling.grammar_mask import SupportsBytes
from gamaneh.testing import ByteTokenizer

NORMAL, USER_DEFINED = 1, 4
PIECES = ['{"', '":', '{"a', '{"a":', '","', '"]', '"]}', "12", "123", '"x', '"x"', "tr", "ue", "true", "}}"]
"""Pieces that cross the borders of what JSON is made of."""


def byte_level() -> Tokenizer:
    """Two end tokens, all bytes and the pieces above by merges; `<tool_call>` is one token."""
    merges = ['{ "', '" :', '{" a', '{"a ":', '" ,', '", "', '" ]', '"] }', "1 2", "12 3", '" x', '"x "', "} }"]
    merges += ["t r", "u e", "tr ue"]
    control = ["<|end|>", "<|stop|>", "<|start|>"]
    pieces = [*sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in merges)]
    tokens = [*control, *pieces, "<tool_call>", "</tool_call>"]
    kinds = [CONTROL] * 3 + [NORMAL] * len(pieces) + [USER_DEFINED] * 2
    keys = {"model": "gpt2", "tokens": tokens, "token_type": kinds, "merges": merges, "eos_token_id": 0}
    return _tokenizer(keys, eos_ids=(0, 1))


def sentence_piece() -> Tokenizer:
    head = [("<unk>", 2), ("<s>", CONTROL), ("</s>", CONTROL)]
    bytes_ = [(f"<0x{byte:02X}>", BYTE) for byte in range(256)]
    words = [(piece, NORMAL) for piece in [*PIECES, '▁"', "▁{", "▁", *'{}[]",:abxy0123456789 truefalsn']]
    pieces = head + bytes_ + list(dict(words).items())
    keys = {
        "model": "llama",
        "tokens": [piece for piece, _ in pieces],
        "token_type": [kind for _, kind in pieces],
        "scores": [-float(at) for at in range(len(pieces))],
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return _tokenizer(keys, eos_ids=(2,))


def _tokenizer(keys: Mapping[str, object], eos_ids: tuple[int, ...]) -> Tokenizer:
    return Tokenizer(backend_from_metadata({f"tokenizer.ggml.{key}": value for key, value in keys.items()}), eos_ids)


TOKENIZERS: Mapping[str, Callable[[], SupportsBytes]] = {
    "bytes": ByteTokenizer,
    "byte-level": byte_level,
    "sentence-piece": sentence_piece,
}
