"""Drafts what followed the longest known end of the text, here or in earlier answers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from gamaneh.core import ANYBODY, EMPTY_DRAFT, Draft, Needs, ProposalRow, Verdict
from gamaneh.proposers.suffix.journal import Journal
from gamaneh.proposers.suffix.store import SharedStore, owner_of
from gamaneh.proposers.suffix.tree import ContextTree

GRADE_BORDERS = (4, 8, 16)
"""Tokens of a match from which on a draft has the next grade: the longer the match, the surer what follows."""


@dataclass(slots=True)
class _Text:
    """One request.

    Args:
        tree: its prompt, its output and its reference.
        tokens: the engine's list of its tokens, which grows.
        read: how many of them are in the tree.
        begin: how many there were when the request was first seen: what comes later is its answer.
        owner: who may be shown the answer; None for nobody but this request.
    """

    tree: ContextTree
    tokens: Sequence[int]
    read: int
    begin: int
    owner: str | None


class SuffixProposer:
    """Drafts by copying from the request's own text and from earlier answers; needs no model.

    Where the longest known ending of the text goes on in several ways, the most frequent one is drafted. An answer is
    added to the store when its request ends, and shown to requests of the same salt alone; with the salt `ANYBODY` it
    is shown to none.

    Args:
        store: earlier answers; None drafts from the request's own text alone.
        journal: where answers are written down; None forgets them with the process.
        max_context: longest ending that is looked for.
        least_share: a draft ends where its continuations are less frequent, all together, than this share.
        forbidden: token ids that are never proposed (special and image tokens); a draft ends before the
            first of them.
    """

    name = "suffix"
    needs = Needs(instant=True)

    def __init__(
        self,
        store: SharedStore | None = None,
        journal: Journal | None = None,
        *,
        max_context: int = 32,
        least_share: float = 0.25,
        forbidden: Collection[int] = (),
    ) -> None:
        self.store, self.journal = store, journal
        self._max_context, self._least_share = max_context, least_share
        self._forbidden = frozenset(forbidden)
        self._texts: dict[str, _Text] = {}

    def propose(self, rows: Sequence[ProposalRow]) -> list[Draft]:
        """One chain per row; empty where nothing matches."""
        return [self._draft(row) for row in rows]

    def observe(self, rows: Sequence[ProposalRow], verdicts: Sequence[Verdict]) -> None:
        """Nothing to learn: emitted tokens are read with the next proposal."""

    def drop(self, request_ids: Iterable[str]) -> None:
        """Forget these requests, and keep what was seen of their answers."""
        for request_id in request_ids:
            text = self._texts.pop(request_id, None)
            if text is not None:
                self._keep(text)

    def memory_bytes(self) -> int:
        """Bytes of all trees, estimated."""
        own = sum(text.tree.nbytes for text in self._texts.values())
        return own + (0 if self.store is None else self.store.nbytes)

    def _draft(self, row: ProposalRow) -> Draft:
        text = self._text(row)
        shared = () if self.store is None or text.owner is None else self.store.trees(text.owner)
        found = [(match, tree) for tree in (text.tree, *shared) if (match := tree.match(row.tokens)) is not None]
        if not found:
            return EMPTY_DRAFT
        # Of equally long matches the first: the request's own text, then the latest answers.
        match, tree = max(found, key=lambda pair: pair[0].size)
        copied = tree.follow(match, row.tokens, row.max_depth, self._least_share)
        tokens = takewhile(lambda token: token not in self._forbidden, copied)
        return replace(Draft.chain(tokens), grade=sum(match.size >= border for border in GRADE_BORDERS))

    def _text(self, row: ProposalRow) -> _Text:
        text = self._texts.get(row.request_id)
        if text is None:
            text = self._texts[row.request_id] = self._begin(row)
        text.tree.extend(row.tokens[text.read :])
        text.read = len(row.tokens)
        return text

    def _begin(self, row: ProposalRow) -> _Text:
        tree = ContextTree(self._max_context)
        tree.begin()
        tree.extend(row.reference)
        tree.begin()
        return _Text(tree, row.tokens, 0, len(row.tokens), None if row.salt == ANYBODY else owner_of(row.salt))

    def _keep(self, text: _Text) -> None:
        answer = list(text.tokens[text.begin :])
        if self.store is None or text.owner is None or not answer:
            return
        self.store.add(text.owner, answer)
        if self.journal is not None:
            self.journal.append(text.owner, answer)
