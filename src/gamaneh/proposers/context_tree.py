"""A tree of contexts: which tokens came after which endings of a text, and how often.

The node of a context lies below that of the context without its first token, so a walk from the root
reads the end of a text backwards (context trees: Rissanen, "A universal data compression system", 1983).
It is the suffix tree of the reversed texts, grown only where texts repeat.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise, takewhile

BORDER = -1
"""Stands before each text, so that no context reaches from one into another."""

_STRIDE = 1 << 24
"""More than there are token ids: (node, token) is one key, `node * _STRIDE + token`."""

_ROOT = 0
_BYTES_PER_KEY = 60
"""Of the two numbers of an entry of a dictionary, beside the dictionary itself."""

GROWTH = 8
"""Tokens by which a context is grown at most when it comes again."""

SHORTEST = 2
"""Tokens that have to agree before anything is drafted."""


@dataclass(frozen=True, slots=True)
class EndingMatch:
    """Where a tree knows the end of a text.

    Args:
        size: tokens that agree, as far as they are looked at.
        place: position in the tree's texts of the token that is expected next.
        share: how many of the continuations seen there begin with that token.
    """

    size: int
    place: int
    share: float


class ContextTree:
    """Texts, and what follows their contexts.

    A context that was seen once is a leaf. When it comes again it is grown by the tokens in front of it, to tell
    the two places apart, but by no more than `GROWTH` each time: text that does not repeat costs one node a token,
    and frequent contexts are known at great length. Adding a token, or looking for an ending, takes at most
    `max_context` steps, however much text there is.

    Args:
        max_context: tokens of the longest context.
    """

    def __init__(self, max_context: int) -> None:
        self.max_context = max_context
        self._tokens = array("i")
        self._children: dict[int, int] = {}
        # Of each node: occurrences; where the latest one of the most frequent continuation stands; how often
        # that came; and whether it has longer contexts below it.
        self._count = array("i", [0])
        self._place = array("i", [0])
        self._most = array("i", [0])
        self._grown = bytearray([True])
        # How often a token came after a node; only of nodes with several occurrences.
        self._followed: dict[int, int] = {}

    def __len__(self) -> int:
        """Tokens, with one more for each text."""
        return len(self._tokens)

    @property
    def nbytes(self) -> int:
        """Bytes of it all, estimated."""
        tables = (self._children, self._followed)
        arrays = (self._tokens, self._count, self._place, self._most, self._grown)
        return sum(map(sys.getsizeof, (*tables, *arrays))) + _BYTES_PER_KEY * sum(map(len, tables))

    def begin(self) -> None:
        """Let a new text begin."""
        self._tokens.append(BORDER)

    def extend(self, tokens: Iterable[int]) -> None:
        """Append to the text that was begun last."""
        for token in tokens:
            self._tokens.append(token)
            self._learn(len(self._tokens) - 1)

    def texts(self) -> Iterator[array[int]]:
        """All texts, the oldest first."""
        borders = [at for at, token in enumerate(self._tokens) if token == BORDER]
        return (self._tokens[start + 1 : end] for start, end in pairwise([*borders, len(self._tokens)]))

    def match(self, text: Sequence[int]) -> EndingMatch | None:
        """The longest ending of `text` that is known, and its most frequent continuation; None where it is too short.

        Of equally frequent continuations the one that was seen last is taken.
        """
        node, _ = self._deepest(text)
        return self._match(node, text)

    def follow(self, match: EndingMatch, text: Sequence[int], length: int, least_share: float) -> list[int]:
        """Up to `length` tokens that are expected after `text`, whose `match` this is.

        Each one is the most frequent continuation of the longest context that is known. The place that the last
        one was read from goes on where more of its context agrees than the tree has nodes for.

        Args:
            least_share: the draft ends where the product of the continuations' shares falls below this.
        """
        context, drafted = list(text[-self.max_context :]), list[int]()
        place, known, share = match.place, match.size, match.share
        while share >= least_share and len(drafted) < length:
            drafted.append(self._tokens[place])
            context.append(self._tokens[place])
            place, known = place + 1, min(known + 1, self.max_context)
            node, depth = self._deepest(context)
            if depth >= known or self._ends(place):
                better = self._match(node, context)
                if better is None:
                    break
                place, known, share = better.place, better.size, share * better.share
        return drafted

    def _match(self, node: int, text: Sequence[int]) -> EndingMatch | None:
        """What a node says about the end of `text`, which its context is."""
        size = 0 if node == _ROOT else self._agreeing(self._place[node], text)
        return EndingMatch(size, self._place[node], self._most[node] / self._count[node]) if size >= SHORTEST else None

    def _learn(self, end: int) -> None:
        """Count the token at `end` as a continuation of the contexts before it."""
        node = _ROOT
        for size in range(1, self.max_context + 1):
            token = self._tokens[end - size]
            child = self._children.get(node * _STRIDE + token)
            if child is None:
                self._add(node, token, end)
                return
            node, before = child, self._place[child]
            self._count_one(node, end)
            if not self._grown[node]:
                self._tell_apart(node, size, before, end)
                return

    def _tell_apart(self, node: int, size: int, before: int, end: int) -> None:
        """Grow the context of `size` tokens that stands in front of both places by the tokens it lacks to differ."""
        for longer in range(size + 1, min(size + GROWTH, self.max_context) + 1):
            self._grown[node] = True
            earlier, latest = self._tokens[before - longer], self._tokens[end - longer]
            if earlier != latest:
                self._add(node, earlier, before)
                self._add(node, latest, end)
                return
            self._add(node, earlier, before)
            if earlier == BORDER:
                return
            node = len(self._count) - 1
            self._count_one(node, end)

    def _add(self, node: int, token: int, end: int) -> None:
        """A node for the context that is longer by `token`, seen for the first time, in front of `end`."""
        if token == BORDER:
            return
        self._children[node * _STRIDE + token] = len(self._count)
        self._count.append(1)
        self._place.append(end)
        self._most.append(1)
        self._grown.append(False)

    def _count_one(self, node: int, end: int) -> None:
        """Count one more occurrence of a context, and the token that follows it."""
        base = node * _STRIDE
        self._count[node] += 1
        if self._count[node] == 2:
            self._followed[base + self._tokens[self._place[node]]] = 1
        times = self._followed.get(base + self._tokens[end], 0) + 1
        self._followed[base + self._tokens[end]] = times
        if times >= self._most[node]:
            self._most[node], self._place[node] = times, end

    def _deepest(self, text: Sequence[int]) -> tuple[int, int]:
        """Node of the longest context that `text` ends with, and its tokens."""
        node, depth = _ROOT, 0
        for token in islice(reversed(text), self.max_context):
            child = self._children.get(node * _STRIDE + token)
            if child is None:
                break
            node, depth = child, depth + 1
        return node, depth

    def _agreeing(self, place: int, text: Sequence[int]) -> int:
        """How many tokens before `place` are the last ones of `text`, up to `max_context`."""
        ours = reversed(self._tokens[max(place - self.max_context, 0) : place])
        pairs = zip(ours, reversed(text), strict=False)
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    def _ends(self, place: int) -> bool:
        return place >= len(self._tokens) or self._tokens[place] == BORDER
