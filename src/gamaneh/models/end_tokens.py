"""Which tokens end the output: the union of what every file of a model says."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gamaneh.errors import CorruptModel
from gamaneh.models.keys import Keys
from gamaneh.models.tokenizer import Tokenizer
from gamaneh.models.weights import read_json

END_MARKERS = frozenset(
    {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>", "<end_of_turn>"}
)
"""Texts of tokens that end a message. One ends the output where the chat template writes it, or where a GGUF file marks
it as a control token, even if no file names it as an end token."""

_GENERATION = "generation_config.json"
_TOKENIZER_FILES = ("tokenizer_config.json", "special_tokens_map.json")


def end_ids(stated: Sequence[int], tokenizer: Tokenizer, rows: int) -> tuple[int, ...]:
    """Return the ids that are stated, the tokenizer's own, and the markers that the chat template writes, each once.

    Args:
        rows: tokens that the model has.
    """
    vocabulary, template = tokenizer.vocab(), str(tokenizer.backend.chat_template or "")
    markers = sorted(vocabulary[text] for text in END_MARKERS if text in template and vocabulary.get(text, rows) < rows)
    return tuple(dict.fromkeys([*stated, *tokenizer.eos_ids, *markers]))


def folder_ends(folder: Path, config_ends: Sequence[int], tokenizer: Tokenizer, rows: int) -> tuple[int, ...]:
    """Return the ids that the files of a Hugging Face folder state, those of the generation config first.

    Args:
        config_ends: what `config.json` states.
        rows: tokens that the model has.

    Raises:
        CorruptModel: an id is outside the rows, or no id, or an end token is not in the vocabulary.
    """
    ends: list[int] = []
    if (folder / _GENERATION).is_file():
        ends += Keys(read_json(folder / _GENERATION), str(folder / _GENERATION)).tokens("eos_token_id", rows)
    ends += config_ends
    for name in _TOKENIZER_FILES:
        if (folder / name).is_file():
            ends += _named(read_json(folder / name).get("eos_token"), folder / name, tokenizer, rows)
    return tuple(ends)


def _named(token: Any, file: Path, tokenizer: Tokenizer, rows: int) -> list[int]:
    """The id of a token that a file names by its text, or by an object with its text."""
    text = token.get("content") if isinstance(token, dict) else token
    if text is None:
        return []
    index = tokenizer.vocab().get(text) if isinstance(text, str) else None
    if index is None or index >= rows:
        raise CorruptModel(f"{file}: eos_token must be one of the model's {rows} tokens, got {text!r}")
    return [index]
