"""Where a grammar's parser stands behind a request's tokens, and what is certain from there on."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from gamaneh.prefix import common_prefix

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MOST_BLANKS = 40
"""Blanks in a row between tokens of JSON, bounded: a model that likes line breaks would never come to the end."""


class Parser:
    """Follows the tokens of one request.

    It moves for good with committed tokens only. A path is tried on top of them and taken back as far as
    the next one differs, so that where it stands depends on nothing but the tokens.

    Args:
        matcher: at the beginning of the output; nobody else may move it.
        ends: end tokens.
        tokens: prompt and committed output; the list is read again at each call.
        prompt_len: tokens of the prompt, which the grammar does not concern.
    """

    def __init__(self, matcher: LLMatcher, ends: frozenset[int], tokens: Sequence[int], prompt_len: int) -> None:
        self.matcher, self._ends, self._tokens = matcher, ends, tokens
        self._committed = prompt_len
        self._tried: tuple[int, ...] = ()

    def go_to(self, path: Sequence[int]) -> bool:
        """Stand behind the committed tokens and `path`; False where one of them is refused or an end token."""
        wanted = (*self._tokens[self._committed :], *path)
        before_end = tuple(takewhile(lambda token: token not in self._ends, wanted))
        shared = common_prefix(self._tried, before_end)
        self.matcher.rollback(len(self._tried) - shared)
        shared += self.matcher.try_consume_tokens(list(before_end[shared:]))
        settled = min(shared, len(self._tokens) - self._committed)
        self._committed += settled
        self._tried = before_end[settled:shared]
        return shared == len(wanted)


class Scout:
    """Looks ahead for text that has to come. A grammar has to allow every spelling of a text.

    Args:
        parser: its own. A parser that meets a limit of its size gives up for good, which must not happen to
            the one that decides what is allowed.
        vocabulary: spells texts.
    """

    def __init__(self, parser: Parser, vocabulary: LLTokenizer) -> None:
        self._parser, self._vocabulary = parser, vocabulary
        newline = vocabulary.greedy_tokenize("\n")  # the one blank that no string of JSON may hold
        self._blanks = newline * MOST_BLANKS if len(newline) == 1 else []
        self._in_numbers = [vocabulary.greedy_tokenize(text)[:1] for text in ("0", ".")]

    def forced(self, length: int) -> tuple[bytes, ...]:
        """As `TokenMask.forced`; nothing is certain to a parser that gave up."""
        walked: list[int] = []
        pieces: list[bytes] = []
        while self._parser.go_to(walked) and sum(map(len, pieces)) < length:
            piece = self._behind_blanks() if pieces else self._parser.matcher.compute_ff_bytes()
            if pieces and not piece:
                break
            pieces.append(piece)
            walked += self._spelled(piece)
        return tuple(pieces) if any(pieces) else ()

    def _behind_blanks(self) -> bytes:
        """What has to come where blanks may stand or not; nothing where something else may come too."""
        matcher = self._parser.matcher
        count = matcher.validate_tokens(self._blanks)
        if count == 0 or matcher.is_accepting() or any(map(matcher.validate_tokens, self._in_numbers)):
            return b""  # the value or the number may be complete, and may go on
        matcher.consume_tokens(self._blanks[:count])
        piece = matcher.compute_ff_bytes()
        matcher.rollback(count)
        spelled = self._spelled(piece)
        return piece if matcher.validate_tokens(spelled) == len(spelled) else b""

    def _spelled(self, piece: bytes) -> list[int]:
        """Some tokens of a text, without characters of which it holds only a part; nothing is found behind those."""
        return self._vocabulary.greedy_tokenize(piece.decode(errors="ignore"))
