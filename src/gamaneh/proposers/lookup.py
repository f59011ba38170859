"""Prompt lookup: what followed the last time the text ended like this (Saxena, prompt lookup decoding, 2023)."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice, takewhile
from typing import Any

from gamaneh.checks import whole
from gamaneh.core import Draft, Needs, ProposalRow, Proposer
from gamaneh.errors import InvalidOption
from gamaneh.proposers.recipe import Ingredients, ProposerOption, Recipe

MAX_NGRAM = ProposerOption("max_ngram", int, 8, whole(1, 64), "Longest text that lookup matches, in tokens.")
MIN_NGRAM = ProposerOption("min_ngram", int, 2, whole(1, 64), "Shortest text that lookup matches, in tokens.")

GRADE_BORDERS = (4, 8)
"""Tokens of a match from which on a draft has the next grade: the longer the match, the surer what follows."""


class NgramIndex:
    """Finds earlier places in a growing text that read like its end.

    Only n-grams with a token after them are indexed, so the end of the text never finds itself.
    The longer n-grams of one that has occurred just once would lead to the same place, so they are
    added when it occurs again: text without repetition costs one entry per token.

    Args:
        max_ngram: longest ending that is looked for.
        min_ngram: shortest one.
        reference: a second, fixed text that is searched as well; of two matches the longer one
            counts, and the reference where they are equally long.
    """

    def __init__(self, max_ngram: int, min_ngram: int, reference: Sequence[int] = ()) -> None:
        if not 1 <= min_ngram <= max_ngram:
            raise ValueError(f"min_ngram must be from 1 to max_ngram ({max_ngram}), got {min_ngram}")
        self._max_ngram = max_ngram
        self._min_ngram = min_ngram
        self._tokens: list[int] = []
        # One table per length: n-gram -> where the text goes on after its latest occurrence.
        self._tables: list[dict[tuple[int, ...], int]] = [{} for _ in range(min_ngram, max_ngram + 1)]
        self._reference = NgramIndex(max_ngram, min_ngram) if reference else None
        if self._reference is not None:
            self._reference.extend(reference)

    def __len__(self) -> int:
        """Tokens of the text."""
        return len(self._tokens)

    @property
    def nbytes(self) -> int:
        """Bytes of the index, estimated."""
        tables = sum(
            sys.getsizeof(table) + len(table) * sys.getsizeof((0,) * size)
            for size, table in enumerate(self._tables, start=self._min_ngram)
        )
        return tables + sys.getsizeof(self._tokens) + (self._reference.nbytes if self._reference else 0)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append to the text, at most O(max_ngram) per token."""
        for token in tokens:
            self._index_end()
            self._tokens.append(token)

    def continuation(self, length: int) -> tuple[int, ...]:
        """Up to `length` tokens that followed the latest earlier occurrence of the longest known ending.

        They never reach past the end of the text they come from, with one exception: a text that
        ends with two copies of the whole continuation is taken to go on repeating it.
        """
        own = self._find(self._tokens)
        if self._reference is not None:
            found = self._reference._find(self._tokens)
            if self._reference._matched(found, self._tokens) >= max(self._matched(own, self._tokens), 1):
                return tuple(self._reference._tokens[found : found + length])
        return self._repeated(own, length) if own else ()

    def matched(self) -> int:
        """Tokens of the longest known ending, up to `max_ngram`; 0 where `continuation` is empty."""
        own = self._matched(self._find(self._tokens), self._tokens)
        if self._reference is None:
            return own
        return max(own, self._reference._matched(self._reference._find(self._tokens), self._tokens))

    def _index_end(self) -> None:
        """Index the n-grams at the end of the text, which is about to go on."""
        end = len(self._tokens)
        for size, table in enumerate(self._tables, start=self._min_ngram):
            if size > end:
                return
            ngram = tuple(self._tokens[end - size : end])
            previous = table.get(ngram)
            table[ngram] = end
            if previous is None:
                return
            self._index_longer(previous, size + 1)

    def _index_longer(self, end: int, size: int) -> None:
        """Index the n-gram of `size` at `end`, which was left out while the shorter one was unique."""
        if self._min_ngram <= size <= self._max_ngram and size <= end:
            ngram = tuple(self._tokens[end - size : end])
            self._tables[size - self._min_ngram].setdefault(ngram, end)

    def _find(self, text: Sequence[int]) -> int:
        """Where this text goes on after its latest match with the longest ending of `text`; 0 if nowhere."""
        found = 0
        for size, table in enumerate(self._tables, start=self._min_ngram):
            position = table.get(tuple(text[-size:])) if size <= len(text) else None
            if position is None:
                break
            found = position
        return found

    def _matched(self, end: int, text: Sequence[int]) -> int:
        """How many tokens before `end` equal the end of `text`, up to `max_ngram`."""
        longest = min(self._max_ngram, end, len(text))
        pairs = ((self._tokens[end - size], text[-size]) for size in range(1, longest + 1))
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def _repeated(self, start: int, length: int) -> tuple[int, ...]:
        """Tokens from `start`, over and over if the tokens in front of `start` are a copy of all of them."""
        period = len(self._tokens) - start
        if period < length and self._tokens[-2 * period : -period] == self._tokens[start:]:
            return tuple(islice(cycle(self._tokens[start:]), length))
        return tuple(self._tokens[start : start + length])


class LookupProposer(Proposer):
    """Drafts by copying from the request's own tokens and its reference text; needs no model.

    Args:
        max_ngram: longest ending that is looked for.
        min_ngram: shortest one.
        forbidden: token ids that are never proposed (special and image tokens); a draft ends
            before the first of them.
    """

    name = "lookup"
    needs = Needs(instant=True)

    def __init__(self, max_ngram: int = 8, min_ngram: int = 2, forbidden: Collection[int] = ()) -> None:
        self._max_ngram = max_ngram
        self._min_ngram = min_ngram
        self._forbidden = frozenset(forbidden)
        self._indexes: dict[str, NgramIndex] = {}

    def propose(self, rows: Sequence[ProposalRow]) -> list[Draft]:
        """One chain per row; empty where nothing matches."""
        return [self._draft(row) for row in rows]

    def forget(self, request_id: str) -> None:
        """Forget the texts of a request."""
        self._indexes.pop(request_id, None)

    def memory_bytes(self) -> int:
        """Bytes of all indexes, estimated."""
        return sum(index.nbytes for index in self._indexes.values())

    def _draft(self, row: ProposalRow) -> Draft:
        index = self._indexes.get(row.request_id)
        if index is None:
            index = self._indexes[row.request_id] = NgramIndex(self._max_ngram, self._min_ngram, row.reference)
        index.extend(row.tokens[len(index) :])
        copied = index.continuation(row.max_depth)
        tokens = takewhile(lambda token: token not in self._forbidden, copied)
        return replace(Draft.chain(tokens), grade=_grade(index.matched()))


def _grade(matched: int) -> int:
    return sum(matched >= border for border in GRADE_BORDERS)


def _build(parts: Ingredients) -> Proposer:
    return LookupProposer(parts.value(MAX_NGRAM), parts.value(MIN_NGRAM), parts.special_ids)


def _check(options: Mapping[str, Any]) -> None:
    if options["min_ngram"] > options["max_ngram"]:
        raise InvalidOption("min_ngram", f"must be at most max_ngram ({options['max_ngram']})", options["min_ngram"])


RECIPE = Recipe(
    "lookup",
    _build,
    options=(MAX_NGRAM, MIN_NGRAM),
    titles={"en": "prompt lookup", "fa": "جست‌وجو در پرسش"},
    about="Copies what followed the last time the text ended like this.",
    check=_check,
)
