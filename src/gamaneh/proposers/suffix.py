"""Drafts what followed the longest known end of the text, here or in earlier answers."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gamaneh.checks import number, optional, text, whole
from gamaneh.core import ANYBODY, EMPTY_DRAFT, Draft, Needs, ProposalRow, Proposer
from gamaneh.errors import InvalidOption
from gamaneh.proposers.context_tree import ContextTree
from gamaneh.proposers.recipe import Ingredients, ProposerOption, Recipe
from gamaneh.proposers.suffix_journal import Journal
from gamaneh.proposers.suffix_store import SharedStore, owner_of

if TYPE_CHECKING:
    from gamaneh.models.tokenizer import Tokenizer

SUFFIX_DEPTH = ProposerOption("suffix_depth", int, 32, whole(2, 256), "Longest text that suffix matches, in tokens.")
SUFFIX_SHARE = ProposerOption(
    "suffix_share", float, 0.25, number(0.0, 1.0), "A draft of suffix ends where it is less frequent than this."
)
SUFFIX_TOKENS = ProposerOption(
    "suffix_tokens", int, 100_000, whole(0, 100_000_000), "Tokens of earlier answers that suffix keeps; 0 keeps none."
)
SUFFIX_STORE: ProposerOption[str | None] = ProposerOption(
    "suffix_store", str, None, optional(text("path")), "File that suffix keeps earlier answers in."
)

GRADE_BORDERS = (4, 8, 16)
"""Tokens of a match from which on a draft has the next grade: the longer the match, the surer what follows."""


@dataclass(slots=True)
class _Text:
    """One request.

    Args:
        tree: its prompt, its output and its reference.
        tokens: the engine's list of its tokens, which grows.
        read: how many of them are in the tree.
        begin: how many are the prompt; where nobody says, how many there were at first. What follows is the answer.
        owner: who may be shown the answer; None for nobody but this request.
    """

    tree: ContextTree
    tokens: Sequence[int]
    read: int
    begin: int
    owner: str | None


class SuffixProposer(Proposer):
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

    def end(self, request_id: str) -> None:
        """Keep the answer, and forget the request."""
        text = self._texts.pop(request_id, None)
        if text is not None:
            self._keep(text)

    def forget(self, request_id: str) -> None:
        """Forget the request; half an answer is none."""
        self._texts.pop(request_id, None)

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
        return _Text(
            tree,
            row.tokens,
            0,
            len(row.tokens) if row.prompt_len is None else row.prompt_len,
            None if row.salt == ANYBODY else owner_of(row.salt),
        )

    def _keep(self, text: _Text) -> None:
        answer = list(text.tokens[text.begin :])
        if self.store is None or text.owner is None or not answer:
            return
        self.store.add(text.owner, answer)
        if self.journal is not None:
            self.journal.append(text.owner, answer)


MUCH = 2
"""A file is written anew when it holds this many times as many tokens as the store."""


def fill(store: SharedStore, journal: Journal) -> None:
    """Read the answers of a file into a store; what the store has no room for leaves the file, now and then.

    Raises:
        InvalidOption: as by `Journal.read`.
    """
    tokens = 0
    for owner, answer in journal.read():
        store.add(owner, answer)
        tokens += len(answer)
    if tokens > MUCH * store.capacity:
        journal.rewrite(store.texts())


def open_journal(path: str, store: SharedStore, tokenizer: Tokenizer, vocab_size: int) -> Journal:
    """The file of a store, whose answers are read into it.

    Raises:
        InvalidOption: the file cannot be made or read, is damaged, or belongs to another tokenizer.
    """
    journal = Journal(Path(path).expanduser(), fingerprint(tokenizer), vocab_size)
    fill(store, journal)
    return journal


def fingerprint(tokenizer: Tokenizer) -> str:
    """Equal for tokenizers whose ids mean the same."""
    pieces = sorted((token, piece) for piece, token in tokenizer.vocab().items())
    return hashlib.sha256(repr(pieces).encode()).hexdigest()[:32]


def _build(parts: Ingredients) -> Proposer:
    """What its file holds is known to it at once.

    Raises:
        InvalidOption: the file cannot be made or read, is damaged, or belongs to another tokenizer.
    """
    capacity, depth, path = parts.value(SUFFIX_TOKENS), parts.value(SUFFIX_DEPTH), parts.value(SUFFIX_STORE)
    store = SharedStore(capacity, depth) if capacity else None
    journal = None
    if store is not None and path is not None:
        journal = open_journal(path, store, parts.target.loaded.tokenizer, parts.vocab_size)
    share = parts.value(SUFFIX_SHARE)
    return SuffixProposer(store, journal, max_context=depth, least_share=share, forbidden=parts.special_ids)


def _check(options: Mapping[str, Any]) -> None:
    if options["suffix_store"] is not None and options["suffix_tokens"] == 0:
        raise InvalidOption("suffix_store", "needs suffix_tokens above 0", options["suffix_store"])


RECIPE = Recipe(
    "suffix",
    _build,
    options=(SUFFIX_DEPTH, SUFFIX_SHARE, SUFFIX_TOKENS, SUFFIX_STORE),
    titles={"en": "suffixes of earlier answers", "fa": "پسوندهای پاسخ‌های پیشین"},
    about="Copies what followed the longest known end of the text, here and in earlier answers.",
    check=_check,
)
