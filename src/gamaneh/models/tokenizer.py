"""Text to tokens and back, over a fast tokenizer of the `transformers` library."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from gamaneh.errors import CorruptModel, UnsupportedModel
from gamaneh.models.chat_template import TEXT_BEGINS, parts, render
from gamaneh.models.gguf_file import GgufFile
from gamaneh.models.gguf_tokenizer import SPACE, backend_from_metadata

LOGGER = logging.getLogger(__name__)

LONG_TEXT = 4096
"""Characters from which on a text is read in a way that lets other threads run meanwhile."""

_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


class Tokenizer:
    """The tokenizer of one model.

    Args:
        backend: the library's tokenizer, with its chat template if the model has one.
        eos_ids: tokens that end the output; by default the backend's own.
    """

    def __init__(self, backend: PreTrainedTokenizerFast, eos_ids: Iterable[int] = ()) -> None:
        self.backend = backend
        self._fast = backend.backend_tokenizer
        self._fast.no_truncation()
        self._fast.no_padding()
        own = () if backend.eos_token_id is None else (backend.eos_token_id,)
        self.eos_ids: tuple[int, ...] = tuple(eos_ids) or own
        self.bos_id: int | None = backend.bos_token_id

    @classmethod
    def from_folder(cls, folder: Path, eos_ids: Iterable[int] = ()) -> Tokenizer:
        """Read the tokenizer of a Hugging Face folder.

        Raises:
            CorruptModel: its files are missing or damaged.
            UnsupportedModel: it has no fast version.
        """
        if not any((folder / name).is_file() for name in _FILES):
            raise CorruptModel(f"{folder} must hold one of {', '.join(_FILES)}, got none")
        # The automatic class may rebuild the steps of a tokenizer.json from its own idea of them
        # (it drops the digit splitting of SmolLM2), so that file is taken as it is.
        loader = PreTrainedTokenizerFast if (folder / _FILES[0]).is_file() else AutoTokenizer
        try:
            backend = loader.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        except Exception as error:  # the library raises what it likes at a bad file
            raise CorruptModel(f"tokenizer in {folder} cannot be read: {error}") from error
        if not isinstance(backend, PreTrainedTokenizerFast):
            raise UnsupportedModel(f"tokenizer in {folder} must have a fast version, got {type(backend).__name__}")
        return cls(backend, eos_ids)

    @classmethod
    def from_gguf(cls, file: GgufFile, eos_ids: Iterable[int] = ()) -> Tokenizer:
        """Build the tokenizer that the metadata of a GGUF file describes.

        Raises:
            CorruptModel: metadata is missing or contradicts itself.
            UnsupportedModel: a kind of tokenizer that we do not have.
        """
        return cls(backend_from_metadata(file.metadata), eos_ids)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """Token ids of a text.

        Args:
            special: add what the model wants around a text, such as a begin token, which is not added to a text that
                begins with it already. Special tokens that are written in the text are recognised in any case.
        """
        ids = _ids(self._fast, text, special)
        doubled = special and self._adds_begin and ids[:2] == [self.bos_id] * 2
        return ids[1:] if doubled else ids

    def fewest_tokens(self, text: str) -> int:
        """A number of tokens that a text has at least, without reading it."""
        shrinks = 1 if self._fast.normalizer is None else 3
        return len(text.encode(errors="replace")) // (self._longest * shrinks)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of token ids; ids without a token (a padded vocabulary has some) add nothing."""
        return self._fast.decode(list(ids), skip_special_tokens=skip_special)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> list[int]:
        """Token ids of a conversation by the model's chat template, up to where the answer begins.

        Only the template writes control tokens: what looks like one in a message, a tool or a variable is encoded as
        text. Arguments of earlier calls may be JSON or objects; JSON stays as it was written.

        Args:
            variables: what else the template is told, for example `enable_thinking`.

        Raises:
            InvalidRequest: the model has no chat template, or the template refuses the messages.
        """
        text = render(self.backend, messages, tools, self._control_texts, variables)
        encoders = {False: self._fast, True: self._literal} if TEXT_BEGINS in text else {False: self._fast}
        return [token for part, literal in parts(text) for token in _ids(encoders[literal], part, False)]

    @property
    def reasons(self) -> bool:
        """Whether the chat template knows reasoning in front of an answer, `<think>...</think>`."""
        return "</think>" in str(self.backend.chat_template or "")

    @property
    def takes_tools(self) -> bool:
        """Whether the chat template has a place for tools."""
        return "tools" in str(self.backend.chat_template or "")

    def token_bytes(self, token: int) -> bytes:
        """UTF-8 bytes that a token stands for, possibly only a part of a character; none if it has no token."""
        added = self._added.get(token)
        if added is not None:
            return added.encode()
        piece = self._pieces.get(token, "")
        return self._byte_level(piece) if self._is_byte_level else self._sentence_piece(piece)

    def token_text(self, token: int) -> str:
        """Text of one token, to show it: a part of a character becomes the replacement character."""
        return self.token_bytes(token).decode(errors="replace")

    def vocab(self) -> dict[str, int]:
        """Pieces as the tokenizer spells them -> ids, added tokens included."""
        return dict(self._fast.get_vocab(with_added_tokens=True))

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest id with a token; a model's own `vocab_size` may be larger."""
        return 1 + max(self._pieces, default=-1)

    def warn_of_rows(self, rows: int, place: str) -> None:
        """Warn of tokens for which a model has no row; prompts that hold one are refused.

        Args:
            place: what the warning calls the model.
        """
        if self.vocab_size > rows:
            beyond = [piece for token, piece in sorted(self._pieces.items()) if token >= rows]
            shown = ", ".join(beyond[:5])
            LOGGER.warning("%s: vocab_size is %d, its tokenizer has %d more: %s", place, rows, len(beyond), shown)

    @cached_property
    def absent_ids(self) -> frozenset[int]:
        """Ids below `vocab_size` without a token."""
        return frozenset(range(self.vocab_size)) - self._pieces.keys()

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """Ids of control tokens, which `decode` skips."""
        return frozenset(token for token, entry in self._fast.get_added_tokens_decoder().items() if entry.special)

    @cached_property
    def _longest(self) -> int:
        """Bytes of the longest token."""
        return max((len(self.token_bytes(token)) for token in self._pieces), default=1) or 1

    @cached_property
    def _control_texts(self) -> frozenset[str]:
        return frozenset(entry.content for entry in self._fast.get_added_tokens_decoder().values() if entry.special)

    @cached_property
    def _literal(self) -> FastTokenizer:
        """The same tokenizer, for texts in which control tokens are not recognised."""
        literal = FastTokenizer.from_str(self._fast.to_str())
        literal.encode_special_tokens = True
        return literal

    @cached_property
    def _adds_begin(self) -> bool:
        return self.bos_id is not None and self._fast.encode("", add_special_tokens=True).ids[:1] == [self.bos_id]

    @cached_property
    def _pieces(self) -> dict[int, str]:
        return {token: piece for piece, token in self.vocab().items()}

    @cached_property
    def _added(self) -> dict[int, str]:
        return {token: entry.content for token, entry in self._fast.get_added_tokens_decoder().items()}

    @cached_property
    def _is_byte_level(self) -> bool:
        return isinstance(self._fast.decoder, decoders.ByteLevel)

    def _byte_level(self, piece: str) -> bytes:
        """An entry with a character outside the alphabet stands for itself, as the library decodes it."""
        if not _BYTES.keys() >= set(piece):
            return piece.encode()
        return bytes(_BYTES[character] for character in piece)

    def _sentence_piece(self, piece: str) -> bytes:
        if len(piece) == 6 and piece.startswith("<0x"):
            return bytes([int(piece[3:5], 16)])
        return piece.replace(SPACE, " ").encode()


def _ids(tokenizer: FastTokenizer, text: str, special: bool) -> list[int]:
    if len(text) < LONG_TEXT:
        return list(tokenizer.encode(text, add_special_tokens=special).ids)
    return list(tokenizer.encode_batch_fast([text], add_special_tokens=special)[0].ids)


def tokenizer_difference(target: Tokenizer, draft: Tokenizer) -> str | None:
    """Where two tokenizers disagree, as a sentence; None if every id that both have is the same token.

    Vocabularies of different sizes are no difference: models of one family are padded differently.
    """
    ours, theirs = _by_id(target), _by_id(draft)
    common = sorted(ours.keys() & theirs.keys())
    for token in common:
        if ours[token] != theirs[token]:
            return f"token {token} is {ours[token]!r} for the target but {theirs[token]!r} for the draft"
    return None if common else "target and draft have no token id in common"


def _by_id(tokenizer: Tokenizer) -> dict[int, str]:
    return {token: piece for piece, token in tokenizer.vocab().items()}


def _byte_alphabet() -> dict[str, int]:
    """The printable characters that byte-level tokenizers write for the 256 bytes (as GPT-2 did)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


_BYTES = _byte_alphabet()
