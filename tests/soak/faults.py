"""A proposer that fails now and then, in every way that a proposer can fail."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence

import torch

from gamaneh.core import Draft, ProposalRow, Proposer

SLOW_SECONDS = 0.02

Fault = Callable[[list[Draft], Sequence[ProposalRow]], list[Draft]]


class FaultyProposer:
    """Passes everything on to another proposer, and breaks a share of its drafts.

    Args:
        share: of the calls of `propose` that fail.
    """

    def __init__(self, inner: Proposer, share: float, generator: random.Random, vocab_size: int) -> None:
        self.name, self.needs = inner.name, inner.needs
        self.inner, self.share, self.generator, self.vocab_size = inner, share, generator, vocab_size
        self.injected: Counter[str] = Counter()

    def propose(self, rows: Sequence[ProposalRow]) -> list[Draft]:
        drafts = self.inner.propose(rows)
        if self.generator.random() >= self.share:
            return drafts
        name, fault = self.generator.choice(list(self._faults().items()))
        self.injected[name] += 1
        return fault(drafts, rows)

    def end(self, request_id: str) -> None:
        self.inner.end(request_id)

    def forget(self, request_id: str) -> None:
        self.inner.forget(request_id)

    def memory_bytes(self) -> int:
        return self.inner.memory_bytes()

    def _faults(self) -> dict[str, Fault]:
        return {
            "raises": _raise(RuntimeError("injected fault")),
            "out of memory": _raise(MemoryError("injected fault")),
            "too few drafts": lambda drafts, rows: drafts[1:],
            "too long": lambda drafts, rows: [Draft.chain([0] * (row.max_depth + 1)) for row in rows],
            "unknown token": lambda drafts, rows: [Draft.chain([self.vocab_size]) for _ in rows],
            "no number": lambda drafts, rows: (
                [Draft.chain([0], torch.full((1, self.vocab_size), torch.nan))] * len(rows)
            ),
            "wrong tokens": lambda drafts, rows: [self._wrong(row) for row in rows],
            "slow": _slow,
        }

    def _wrong(self, row: ProposalRow) -> Draft:
        """A legal draft that is hardly ever right."""
        return Draft.chain(self.generator.randrange(self.vocab_size) for _ in range(row.max_depth))


def _raise(error: Exception) -> Fault:
    def fault(drafts: list[Draft], rows: Sequence[ProposalRow]) -> list[Draft]:
        raise error

    return fault


def _slow(drafts: list[Draft], rows: Sequence[ProposalRow]) -> list[Draft]:
    time.sleep(SLOW_SECONDS)
    return drafts
