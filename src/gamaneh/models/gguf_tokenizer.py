"""A tokenizer from the metadata of a GGUF file, built with the `tokenizers` library."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from gamaneh.errors import CorruptModel, ModelError, UnsupportedModel
from gamaneh.models.gguf_file import Metadata
from gamaneh.models.keys import Keys, is_number

LOGGER = logging.getLogger(__name__)

CONTROL, USER_DEFINED, UNUSED, BYTE = 3, 4, 5, 6
"""Values of `tokenizer.ggml.token_type`."""

_PREFIX = "tokenizer.ggml."
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
"""How SentencePiece writes a space."""

_DEFAULT_SPECIAL = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How the text is cut before byte pairs are merged, by `tokenizer.ggml.pre`.

    Args:
        split: what cuts it, before it is written in the byte alphabet.
        regex: let the byte alphabet's step cut by GPT-2's rules too.
        nfc: compose characters first.
        whole: a piece that is a token stays whole, whatever the merges say.
        begin: add the begin token unless the file says otherwise.
    """

    split: Callable[[], pre_tokenizers.PreTokenizer] | None = None
    regex: bool = False
    nfc: bool = False
    whole: bool = False
    begin: bool = False


def backend_from_metadata(metadata: Metadata) -> PreTrainedTokenizerFast:
    """The tokenizer of a GGUF file, with its special tokens and its chat template.

    Raises:
        CorruptModel: metadata is missing or contradicts itself.
        UnsupportedModel: a kind of tokenizer that we do not have.
    """
    kind = metadata.get(f"{_PREFIX}model")
    if kind not in _BUILDERS:
        raise UnsupportedModel(f"tokenizer.ggml.model must be one of {', '.join(_BUILDERS)}; got {kind!r}")
    try:
        fast, begin = _BUILDERS[kind](metadata)
        _add_tokens(fast, metadata)
        _add_affixes(fast, metadata, begin)
    except ModelError:
        raise
    except Exception as error:  # the library raises plain exceptions at bad merges
        raise CorruptModel(f"tokenizer in the GGUF metadata cannot be built: {error}") from error
    backend = PreTrainedTokenizerFast(tokenizer_object=fast, **_named_tokens(metadata))  # type: ignore[no-untyped-call]
    backend.chat_template = metadata.get("tokenizer.chat_template")
    return backend


def _byte_level(metadata: Metadata) -> tuple[Tokenizer, bool]:
    name = metadata.get(f"{_PREFIX}pre")
    if name is None:
        LOGGER.warning("GGUF metadata does not give %spre; text is cut as GPT-2 does, which may be wrong", _PREFIX)
        name = "default"
    if name not in PRE_TOKENIZERS:
        raise UnsupportedModel(f"tokenizer.ggml.pre must be one of {', '.join(PRE_TOKENIZERS)}; got {name!r}")
    pre = PRE_TOKENIZERS[name]
    merges = [tuple(merge.split(" ", 1)) for merge in _need(metadata, "merges")]
    fast = Tokenizer(models.BPE(vocab=_vocab(metadata), merges=merges, ignore_merges=pre.whole))
    if pre.nfc:
        fast.normalizer = normalizers.NFC()
    alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre.regex)
    fast.pre_tokenizer = pre_tokenizers.Sequence([pre.split(), alphabet]) if pre.split else alphabet
    fast.decoder = decoders.ByteLevel()
    return fast, pre.begin


def _sentence_piece(metadata: Metadata) -> tuple[Tokenizer, bool]:
    vocab = {_respelled(piece): token for piece, token in _vocab(metadata).items()}
    unknown = _token(metadata, "unknown")
    fast = Tokenizer(
        models.BPE(
            vocab=vocab, merges=_implied_merges(metadata, vocab), unk_token=unknown, byte_fallback=True, fuse_unk=True
        )
    )
    spaced = normalizers.Replace(" ", SPACE)
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if metadata.get(f"{_PREFIX}add_space_prefix", True):
        fast.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaced])
        steps.append(decoders.Strip(" ", 1, 0))
    else:
        fast.normalizer = spaced
    fast.decoder = decoders.Sequence(steps)
    return fast, True


_BUILDERS: Mapping[Any, Callable[[Metadata], tuple[Tokenizer, bool]]] = {
    "gpt2": _byte_level,
    "llama": _sentence_piece,
}


def _split(digits: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    """The cut that Llama 3 and Qwen share but for how digits are grouped."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return lambda: pre_tokenizers.Split(Regex(pattern), behavior="isolated")


_GPT2 = PreTokenizer(regex=True)
_QWEN2 = PreTokenizer(_split(r"\p{N}"), nfc=True)
_LLAMA3 = PreTokenizer(_split(r"\p{N}{1,3}"), whole=True, begin=True)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": PreTokenizer(lambda: pre_tokenizers.Digits(individual_digits=True), regex=True),
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "smaug-bpe": PreTokenizer(_LLAMA3.split, whole=True),
}
"""By `tokenizer.ggml.pre`."""


def _need(metadata: Metadata, key: str) -> Any:
    if f"{_PREFIX}{key}" not in metadata:
        raise CorruptModel(f"GGUF metadata must have {_PREFIX}{key}, got none")
    return metadata[f"{_PREFIX}{key}"]


def _kinds(metadata: Metadata) -> list[int]:
    tokens = _need(metadata, "tokens")
    kinds = _need(metadata, "token_type")
    if len(kinds) != len(tokens):
        raise CorruptModel(
            f"{_PREFIX}token_type must have one entry for each of {len(tokens)} tokens, got {len(kinds)}"
        )
    return list(kinds)


def _vocab(metadata: Metadata) -> dict[str, int]:
    """Piece -> id, without the fillers at the end of a padded vocabulary."""
    pieces = zip(_need(metadata, "tokens"), _kinds(metadata), strict=True)
    return {piece: token for token, (piece, kind) in enumerate(pieces) if kind != UNUSED}


def _respelled(piece: str) -> str:
    """Gemma's files write runs of spaces as they are, its tokenizer with the mark for a space."""
    return SPACE * len(piece) if piece.strip(" ") == "" else piece


def _implied_merges(metadata: Metadata, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every way to make a piece of two others, best piece first.

    SentencePiece merges the pair that makes the piece of the highest score. Gemma's scores are not
    in its order of merging, the ids are.
    """
    kinds = _kinds(metadata)
    by_id = str(metadata.get("general.architecture")).startswith("gemma")
    scores = [0.0] * len(kinds) if by_id else _need(metadata, "scores")
    if len(scores) != len(kinds) or not all(map(is_number, scores)):
        raise CorruptModel(f"{_PREFIX}scores must have a number for each of {len(kinds)} tokens, got {len(scores)}")
    order = sorted(
        (token for token in vocab.values() if kinds[token] not in (CONTROL, BYTE)),
        key=lambda token: (0.0 if by_id else -scores[token], token),
    )
    pieces = {token: piece for piece, token in vocab.items()}
    return [pair for token in order for pair in _halves(pieces[token], vocab)]


def _halves(piece: str, vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    pairs = [(piece[:cut], piece[cut:]) for cut in range(1, len(piece))]
    known = [(left, right) for left, right in pairs if left in vocab and right in vocab]
    return sorted(known, key=lambda pair: (vocab[pair[0]], vocab[pair[1]]))


def _add_tokens(fast: Tokenizer, metadata: Metadata) -> None:
    """Tokens that are found in the text before anything else; control tokens are special."""
    pieces = list(zip(_need(metadata, "tokens"), _kinds(metadata), strict=True))
    fast.add_special_tokens([AddedToken(text, normalized=False) for text, kind in pieces if kind == CONTROL])
    fast.add_tokens([AddedToken(_respelled(text), normalized=False) for text, kind in pieces if kind == USER_DEFINED])


def _add_affixes(fast: Tokenizer, metadata: Metadata, begin: bool) -> None:
    """Begin and end tokens around a text, where the model wants them."""
    wanted = {
        "bos": metadata.get(f"{_PREFIX}add_bos_token", begin),
        "eos": metadata.get(f"{_PREFIX}add_eos_token", False),
    }
    named = {name: _token(metadata, name) for name, on in wanted.items() if on}
    template = [text for text in (named.get("bos"), "$A", named.get("eos")) if text]
    if len(template) > 1:
        ids = [(text, fast.token_to_id(text)) for text in template if text != "$A"]
        affixes = processors.TemplateProcessing(single=template, special_tokens=ids)
        fast.post_processor = affixes


def _token(metadata: Metadata, name: str) -> str | None:
    """Text of a token that the metadata names by its id."""
    tokens = _need(metadata, "tokens")
    token = Keys(metadata, "GGUF metadata").token(f"{_PREFIX}{name}_token_id", len(tokens))
    return None if token is None else str(tokens[token])


def _named_tokens(metadata: Metadata) -> dict[str, str]:
    texts = {argument: _token(metadata, name) for argument, name in _DEFAULT_SPECIAL.items()}
    return {argument: text for argument, text in texts.items() if text is not None}
