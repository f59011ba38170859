"""Grammars: which tokens may come next so that the output parses. All of the library llguidance is behind this file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from gamaneh.errors import BadLogits, InvalidRequest

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Schema = Mapping[str, Any]

_SPACES = r"[ \n\r\t]{%d,40}"
"""Whitespace where JSON allows it, bounded: a model that likes line breaks would never come to the end."""

_ALL_SPELLINGS = '%llguidance {"no_forcing": true}'
"""Allow every way to cut a text into tokens. The library would else choose one where the text is certain,
with a tokenizer that must not add a space in front."""

_OBJECT: Schema = {"type": "object"}


class SupportsBytes(Protocol):
    """What a grammar needs of a tokenizer."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def eos_ids(self) -> tuple[int, ...]: ...

    @property
    def special_ids(self) -> frozenset[int]: ...

    def token_bytes(self, token: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Frame:
    """Text around a JSON value.

    Args:
        before: stands directly before each value.
        after: stands directly after it.
        between: values may repeat, with this in between; None allows one value.
        until: anything may come first, up to and including this text (the end of reasoning).
    """

    before: str = ""
    after: str = ""
    between: str | None = None
    until: str | None = None


class Grammar:
    """A compiled grammar for one tokenizer; it may serve any number of requests at once."""

    def __init__(self, matcher: LLMatcher, end_ids: Tensor) -> None:
        self._matcher, self._end_ids = matcher, end_ids

    @classmethod
    def from_json_schema(
        cls, schema: Schema, tokenizer: SupportsBytes, *, frame: Frame | None = None, field: str = "json_schema"
    ) -> Grammar:
        """Output is a JSON value that fits `schema` (draft 2020-12), its properties in the schema's order.

        Args:
            frame: text that stands around the value.
            field: what errors call the schema.

        Raises:
            InvalidRequest: the schema is none, cannot be satisfied, or says what a grammar cannot
                enforce; the tokenizer has no end token; or the extra `grammar` is not installed.
        """
        library = _library(field)
        end_ids = torch.tensor(tokenizer.eos_ids, dtype=torch.long)
        if len(end_ids) == 0:
            raise InvalidRequest(field, "needs a model with an end token", tokenizer.eos_ids)
        text = library.LLMatcher.grammar_from_lark(_lark(schema, frame or Frame()))
        limits = library.LLParserLimits(verbose_errors=False)
        matcher = library.LLMatcher(_vocabulary(library, tokenizer), text, log_level=0, limits=limits)
        if matcher.is_error():
            raise InvalidRequest(
                field, "must hold a JSON schema that a grammar can enforce", _reason(matcher.get_error())
            )
        return cls(matcher, end_ids)

    @classmethod
    def any_json(cls, tokenizer: SupportsBytes, *, frame: Frame | None = None) -> Grammar:
        """Output is some JSON object.

        Raises:
            InvalidRequest: as for `from_json_schema`.
        """
        return cls.from_json_schema(_OBJECT, tokenizer, frame=frame)

    def new_mask(self, tokens: Sequence[int], prompt_len: int) -> GrammarMask:
        """The mask of one request.

        Args:
            tokens: prompt and committed output; the list is read again at each call of the mask.
            prompt_len: tokens of the prompt, which the grammar does not concern.
        """
        return GrammarMask(self._matcher.deep_copy(), self._end_ids, tokens, prompt_len)


class GrammarMask:
    """Which tokens the grammar allows next; implements `TokenMask`.

    The parser moves for good with committed tokens only. A path is tried on top of them and taken
    back as far as the next one differs, so the answer depends on nothing but the tokens.
    """

    def __init__(self, matcher: LLMatcher, end_ids: Tensor, tokens: Sequence[int], prompt_len: int) -> None:
        self._matcher, self._end_ids, self._tokens = matcher, end_ids, tokens
        self._ends = frozenset(end_ids.tolist())
        self._committed = prompt_len
        self._tried: tuple[int, ...] = ()
        self._masks: dict[tuple[int, ...], Tensor] = {}
        self._masks_at = prompt_len

    def mask(self, path: Sequence[int]) -> Tensor:
        """`[vocab]`, True where allowed after the committed tokens and `path`.

        End tokens are allowed exactly where the grammar may end. After an end token, and after
        anything that the grammar refuses, nothing else is: such a path leads nowhere.

        Raises:
            BadLogits: the parser gave up, at a limit of its size.
        """
        if self._masks_at != len(self._tokens):
            self._masks, self._masks_at = {}, len(self._tokens)
        key = tuple(path)
        if key not in self._masks:
            self._masks[key] = self._mask_after(self._go_to(key))
        return self._masks[key]

    def _go_to(self, path: tuple[int, ...]) -> bool:
        """Bring the parser behind the committed tokens and `path`; False if it refuses one of them."""
        wanted = (*self._tokens[self._committed :], *path)
        before_end = tuple(takewhile(lambda token: token not in self._ends, wanted))
        shared = _common_prefix(self._tried, before_end)
        self._matcher.rollback(len(self._tried) - shared)
        shared += self._matcher.try_consume_tokens(list(before_end[shared:]))
        settled = min(shared, len(self._tokens) - self._committed)
        self._committed += settled
        self._tried = before_end[settled:shared]
        return shared == len(wanted)

    def _mask_after(self, alive: bool) -> Tensor:
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():
            raise BadLogits(f"the grammar allows no token: {_reason(self._matcher.get_error())}")
        allowed = torch.from_numpy(np.unpackbits(bits, bitorder="little").view(np.bool_))
        if not alive:
            allowed.zero_()
        allowed[self._end_ids] = not alive or self._matcher.is_accepting()
        return allowed


def _common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _lark(schema: Schema, frame: Frame) -> str:
    """The grammar in the library's notation."""
    value = f"{_quoted(frame.before)} value {_quoted(frame.after)}"
    more = "" if frame.between is None else f" ({_quoted(frame.between)} {value})*"
    options = {"whitespace_pattern": _SPACES % 1}
    rules = [
        _ALL_SPELLINGS,
        f"start: head {value}{more}",
        f"value: %json {json.dumps({**schema, 'x-guidance': options})}",
    ]
    if frame.until is None:
        return "\n".join([*rules, 'head: ""'])
    return "\n".join([*rules, f"head: free /{_SPACES % 0}/", f"free[suffix={_quoted(frame.until)}]: /(?s:.*)/"])


def _reason(error: str) -> str:
    """The library's words in one line, without its picture of our grammar."""
    return " ".join(error.split("\n   1 | ")[0].split("failed to compile JSON schema: ")[-1].split())


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


_vocabularies: WeakKeyDictionary[SupportsBytes, LLTokenizer] = WeakKeyDictionary()
"""Built once for each tokenizer: it takes most of a second for 150,000 tokens."""


def _vocabulary(library: ModuleType, tokenizer: SupportsBytes) -> LLTokenizer:
    found = _vocabularies.get(tokenizer)
    if found is None:
        wrapper = library.TokenizerWrapper(_Vocabulary(tokenizer))
        found = _vocabularies[tokenizer] = library.LLTokenizer(wrapper, eos_token=list(tokenizer.eos_ids))
    return found


class _Vocabulary:
    """A tokenizer as the library wants to see it; the names are the library's."""

    bos_token_id = None

    def __init__(self, tokenizer: SupportsBytes) -> None:
        self.eos_token_id = tokenizer.eos_ids[0]
        self.tokens = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        self.special_token_ids = sorted(tokenizer.special_ids)

    def __call__(self, text: str) -> list[int]:
        """Only asked for to choose among spellings, and all of them are allowed."""
        raise NotImplementedError


def _library(field: str) -> ModuleType:
    try:
        import llguidance
    except ImportError as error:
        raise InvalidRequest(field, "needs the extra gamaneh[grammar]", str(error)) from error
    return llguidance
