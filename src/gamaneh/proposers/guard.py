"""One wrapper around every proposer: what it makes is checked, and what fails costs guesses, never a wrong token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gamaneh.core import EMPTY_DRAFT, Draft, ProposalRow, Proposer
from gamaneh.errors import OutOfMemory

CERTAIN = 1.001
"""A probability of 1, and what rounding may add to it."""

MEMORY_FAULTS = (MemoryError, OutOfMemory, torch.OutOfMemoryError)

Report = Callable[[Exception], None]


class NonsenseDraft(ValueError):
    """A proposer returned what cannot be a draft."""


class Guarded:
    """Asks a proposer, and tells faults of one request from faults of the proposer.

    A request that alone makes a proposer fail, beside others that it can draft for, gets no more drafts from it; so
    does one with a token that the proposer cannot read. Everything else is a fault of the proposer and is reported.

    Args:
        vocab_size: token ids of drafts are below this.
        report: called with each fault of the proposer.
    """

    def __init__(self, proposer: Proposer, vocab_size: int, report: Report) -> None:
        self.proposer, self.vocab_size, self.report = proposer, vocab_size, report
        self._unfit: set[str] = set()
        self._read: dict[str, int] = {}

    def propose(self, rows: Sequence[ProposalRow], trees: Sequence[bool]) -> tuple[list[Draft], bool]:
        """One checked draft per row, and whether the proposer did without a fault of its own.

        Args:
            trees: whether the rule of each row takes drafts that branch.
        """
        asked = [at for at, row in enumerate(rows) if self._fits(row)]
        drafts = [EMPTY_DRAFT] * len(rows)
        try:
            made = self._ask([rows[at] for at in asked], [trees[at] for at in asked])
        except Exception as error:  # whatever a proposer raises
            self._forget([rows[at] for at in asked])
            alone = [] if isinstance(error, MEMORY_FAULTS) else self._one_by_one(rows, trees, asked)
            if not any(draft is not None for draft in alone):
                self.report(error)
                return drafts, False
            made = []
            for at, draft in zip(asked, alone, strict=True):
                made.append(EMPTY_DRAFT if draft is None else draft)
                if draft is None:
                    self._unfit.add(rows[at].request_id)
        for at, draft in zip(asked, made, strict=True):
            drafts[at] = draft
        return drafts, True

    def end(self, request_id: str) -> None:
        """Tell the proposer that an answer is complete."""
        self._let_go(request_id, self.proposer.end)

    def forget(self, request_id: str) -> None:
        """Tell the proposer to drop a request of which nothing may be learned."""
        self._let_go(request_id, self.proposer.forget)

    def _fits(self, row: ProposalRow) -> bool:
        """Whether the proposer can read the request; only tokens that are new are looked at."""
        limit, start = self.proposer.needs.reads, self._read.get(row.request_id, 0)
        if limit is not None:
            if any(token >= limit for token in row.tokens[start:]):
                self._unfit.add(row.request_id)
            self._read[row.request_id] = len(row.tokens)
        return row.request_id not in self._unfit

    def _one_by_one(
        self, rows: Sequence[ProposalRow], trees: Sequence[bool], asked: Sequence[int]
    ) -> list[Draft | None]:
        """The draft of each row on its own, None where that fails; empty where there is just one."""
        found: list[Draft | None] = []
        for at in asked if len(asked) > 1 else ():
            try:
                found += self._ask([rows[at]], [trees[at]])
            except Exception:  # this request is the one that it cannot handle, or all are
                self._forget([rows[at]])
                found.append(None)
        return found

    def _ask(self, rows: Sequence[ProposalRow], trees: Sequence[bool]) -> list[Draft]:
        made = self.proposer.propose(rows) if rows else []
        for row, draft, branching in zip(rows, made, trees, strict=True):
            self._check(row, draft, trees=branching)
        return made

    def _check(self, row: ProposalRow, draft: Draft, *, trees: bool) -> None:
        if len(draft) > row.max_nodes or draft.depth > row.max_depth:
            raise NonsenseDraft(
                f"draft must have at most {row.max_nodes} nodes of depth {row.max_depth}, got {len(draft)}"
            )
        if any(not 0 <= token < self.vocab_size for token in draft.tokens):
            raise NonsenseDraft(f"draft tokens must be below {self.vocab_size}, got {draft.tokens}")
        if not draft.is_chain and not trees:
            raise NonsenseDraft("draft must be a chain, as the rule judges no trees")
        if draft.probs is not None and not _are_chances(draft.probs, draft.tokens):
            raise NonsenseDraft("draft probabilities of the drafted tokens must be above 0 and at most 1")

    def _let_go(self, request_id: str, tell: Callable[[str], None]) -> None:
        self._unfit.discard(request_id)
        self._read.pop(request_id, None)
        try:
            tell(request_id)
        except Exception as error:  # whatever a proposer raises
            self.report(error)

    def _forget(self, rows: Sequence[ProposalRow]) -> None:
        for row in rows:
            try:
                self.proposer.forget(row.request_id)
            except Exception as error:  # whatever a proposer raises
                self.report(error)


def _are_chances(probs: Tensor, tokens: Sequence[int]) -> bool:
    """Whether each drafted token can have been drawn from its row of `[num_nodes, vocab]`; NaN cannot."""
    chances = probs[range(len(tokens)), tokens]
    return bool(((chances > 0.0) & (chances <= CERTAIN)).all())
