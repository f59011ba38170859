"""Grammars: which tokens may come next so that the output parses. The library llguidance is behind this file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from gamaneh.errors import BadLogits, InvalidRequest
from gamaneh.sampling.parser import MOST_BLANKS, Parser, Scout

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Schema = Mapping[str, Any]

_SPACES = rf"[ \n\r\t]{{%d,{MOST_BLANKS}}}"
"""Whitespace where JSON allows it."""

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

    def __init__(self, matcher: LLMatcher, vocabulary: LLTokenizer, end_ids: Tensor) -> None:
        self._matcher, self._vocabulary, self._end_ids = matcher, vocabulary, end_ids
        self._ends = frozenset(end_ids.tolist())

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
        vocabulary = _vocabulary(library, tokenizer)
        matcher = library.LLMatcher(vocabulary, text, log_level=0, limits=limits)
        if matcher.is_error():
            raise InvalidRequest(
                field, "must hold a JSON schema that a grammar can enforce", _reason(matcher.get_error())
            )
        return cls(matcher, vocabulary, end_ids)

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

        def new_parser() -> Parser:
            return Parser(self._matcher.deep_copy(), self._ends, tokens, prompt_len)

        return GrammarMask(new_parser, self._vocabulary, self._end_ids, tokens)


class GrammarMask:
    """Which tokens the grammar allows next; implements `TokenMask`."""

    def __init__(
        self, new_parser: Callable[[], Parser], vocabulary: LLTokenizer, end_ids: Tensor, tokens: Sequence[int]
    ) -> None:
        self._new_parser, self._vocabulary, self._end_ids, self._tokens = new_parser, vocabulary, end_ids, tokens
        self._parser = new_parser()
        self._masks: dict[tuple[int, ...], Tensor] = {}
        self._masks_at = len(tokens)

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
            self._masks[key] = self._mask_after(self._parser.go_to(key))
        return self._masks[key]

    def forced(self, length: int) -> tuple[bytes, ...]:
        """As `TokenMask.forced`."""
        return self._scout.forced(length)

    @cached_property
    def _scout(self) -> Scout:
        """With a parser of its own, made when it is first asked for."""
        return Scout(self._new_parser(), self._vocabulary)

    def _mask_after(self, alive: bool) -> Tensor:
        matcher = self._parser.matcher
        bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        if matcher.is_error():
            raise BadLogits(f"the grammar allows no token: {_reason(matcher.get_error())}")
        allowed = torch.from_numpy(np.unpackbits(bits, bitorder="little").view(np.bool_))
        if not alive:
            allowed.zero_()
        allowed[self._end_ids] = not alive or matcher.is_accepting()
        return allowed


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


def grammars_are_there() -> bool:
    """Whether the extra `grammar` is installed."""
    return find_spec("llguidance") is not None


def _library(field: str) -> ModuleType:
    try:
        import llguidance
    except ImportError as error:
        raise InvalidRequest(field, "needs the extra gamaneh[grammar]", str(error)) from error
    return llguidance
