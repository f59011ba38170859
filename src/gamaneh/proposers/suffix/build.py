"""From options to a proposer with its store, read from its file."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from pathlib import Path

from gamaneh.models.tokenizer import Tokenizer
from gamaneh.options import SpeculationOptions
from gamaneh.proposers.suffix.journal import Journal
from gamaneh.proposers.suffix.proposer import SuffixProposer
from gamaneh.proposers.suffix.store import SharedStore

MUCH = 2
"""A file is written anew when it holds this many times as many tokens as the store."""


def build_suffix(
    options: SpeculationOptions, tokenizer: Tokenizer, vocab_size: int, forbidden: Collection[int]
) -> SuffixProposer:
    """The proposer `suffix`; what its file holds is known to it at once.

    Raises:
        InvalidOption: the file cannot be made or read, is damaged, or belongs to another tokenizer.
    """
    store = SharedStore(options.suffix_tokens, options.suffix_depth) if options.suffix_tokens else None
    journal = None
    if store is not None and options.suffix_store is not None:
        journal = Journal(Path(options.suffix_store).expanduser(), fingerprint(tokenizer), vocab_size)
        fill(store, journal)
    return SuffixProposer(
        store,
        journal,
        max_context=options.suffix_depth,
        least_share=options.suffix_share,
        forbidden=forbidden,
    )


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


def fingerprint(tokenizer: Tokenizer) -> str:
    """Equal for tokenizers whose ids mean the same."""
    pieces = sorted((token, piece) for piece, token in tokenizer.vocab().items())
    return hashlib.sha256(repr(pieces).encode()).hexdigest()[:32]
