"""One wrapper around every proposer: what it makes is checked, and what fails costs guesses, never a wrong token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gamaneh.control.fallback import Fault, Quarantine
from gamaneh.core import EMPTY_DRAFT, Draft, ProposalRow, Proposer, Stopwatch
from gamaneh.errors import OutOfMemory

CERTAIN = 1.001
"""A probability of 1, and what rounding may add to it."""

MEMORY_FAULTS = (MemoryError, OutOfMemory, torch.OutOfMemoryError)


class NonsenseDraft(ValueError):
    """A proposer returned what cannot be a draft."""


class Guarded:
    """Asks a proposer, checks and times its drafts, and tells faults of one request from faults of the proposer.

    A fault of the proposer puts it in quarantine. Where it fails, the requests of the round are asked for again, each
    alone:

    - On some it fails again while others have drafts: those requests are at fault, and get no more drafts from it. So
      does a request with a token that the proposer cannot read, for which it is not even asked.
    - It works at the second try, or fails on several requests and works on none: the proposer is at fault. So it is
      where memory is short, or where all that it returns is nonsense.
    - It fails on the only request at hand: nobody can know. That request gets no more drafts from it, and the proposer
      is at fault when the next request fares no better.

    Args:
        vocab_size: token ids of drafts are below this.
    """

    def __init__(self, proposer: Proposer, vocab_size: int, quarantine: Quarantine) -> None:
        self.proposer, self.vocab_size, self.quarantine = proposer, vocab_size, quarantine
        self._unfit: set[str] = set()
        self._suspects: set[str] = set()  # requests that it failed on since it last worked; two say enough
        self._read: dict[str, int] = {}

    def propose(
        self, rows: Sequence[ProposalRow], trees: Sequence[bool], watch: Stopwatch | None = None
    ) -> list[Draft]:
        """Return one checked draft per row.

        Args:
            trees: whether the rule of each row takes drafts that branch.
            watch: learns what the proposer took, and how much it had to read.
        """
        name = self.proposer.name
        if watch is None:
            return self._propose(name, rows, trees)
        watch.lag[name] += sum(self.lag(row.request_id, len(row.tokens)) for row in rows)
        started = watch.clock()
        drafts = self._propose(name, rows, trees)
        watch.draft_seconds[name] += watch.clock() - started
        return drafts

    def lag(self, request_id: str, length: int) -> int:
        """Tokens of a request of this length that the proposer has not read yet."""
        return length - self._read.get(request_id, 0)

    def _propose(self, name: str, rows: Sequence[ProposalRow], trees: Sequence[bool]) -> list[Draft]:
        drafts, passed = self._checked(rows, trees)
        if passed:
            self.quarantine.passed(name)
        else:  # what it had read is gone
            for row in rows:
                self._read.pop(row.request_id, None)
        return drafts

    def _checked(self, rows: Sequence[ProposalRow], trees: Sequence[bool]) -> tuple[list[Draft], bool]:
        """One draft per row, and whether the proposer did without a fault of its own."""
        asked = [at for at, row in enumerate(rows) if self._fits(row)]
        drafts, passed = [EMPTY_DRAFT] * len(rows), True
        try:
            made: Sequence[Draft | None] = self._ask([rows[at] for at in asked], [trees[at] for at in asked])
            self._suspects.clear()
        except Exception as error:  # whatever a proposer raises
            self._forget([rows[at] for at in asked])
            if isinstance(error, MEMORY_FAULTS):  # asking again would take as much
                self._report(error)
                return drafts, False
            made = self._one_by_one(rows, trees, asked)
            failed = [rows[at].request_id for at, draft in zip(asked, made, strict=True) if draft is None]
            passed = self._blame(error, failed, works=len(failed) < len(asked))
        for at, draft in zip(asked, made, strict=True):
            drafts[at] = EMPTY_DRAFT if draft is None else draft
        return drafts, passed

    def is_unfit(self, request_id: str) -> bool:
        """Whether the proposer drafts no more for this request."""
        return request_id in self._unfit

    def end(self, request_id: str) -> None:
        """Tell the proposer that an answer is complete."""
        self._let_go(request_id, self.proposer.end)

    def forget(self, request_id: str) -> None:
        """Tell the proposer to drop a request of which nothing may be learned."""
        self._let_go(request_id, self.proposer.forget)

    def _fits(self, row: ProposalRow) -> bool:
        """Whether the proposer can read the request; only tokens that are new are looked at."""
        limit, start = self.proposer.needs.reads, self._read.get(row.request_id, 0)
        if limit is not None and any(token >= limit for token in row.tokens[start:]):
            self._unfit.add(row.request_id)
        self._read[row.request_id] = len(row.tokens)
        return row.request_id not in self._unfit

    def _one_by_one(
        self, rows: Sequence[ProposalRow], trees: Sequence[bool], asked: Sequence[int]
    ) -> list[Draft | None]:
        """The draft of each row on its own, None where that fails."""
        found: list[Draft | None] = []
        for at in asked:
            try:
                found += self._ask([rows[at]], [trees[at]])
            except Exception:  # told already, as the failure of the round
                self._forget([rows[at]])
                found.append(None)
        return found

    def _blame(self, error: Exception, failed: Sequence[str], *, works: bool) -> bool:
        """Find out whose fault it is; return whether it is that of requests alone, and the proposer works.

        Args:
            failed: requests that failed again, each on its own.
            works: it has drafts for some request.
        """
        if works:
            self._suspects.clear()
        elif len(self._suspects) < 2:
            self._suspects.update(failed)
        if not failed or len(self._suspects) > 1 or (isinstance(error, NonsenseDraft) and not works):
            self._report(error)
            return False
        self._unfit.update(failed)
        self.quarantine.note(self.proposer.name, _fault(error))
        return works

    def _report(self, error: Exception) -> None:
        self.quarantine.report(self.proposer.name, f"{type(error).__name__}: {error}", _fault(error))

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
            self._report(error)

    def _forget(self, rows: Sequence[ProposalRow]) -> None:
        for row in rows:
            try:
                self.proposer.forget(row.request_id)
            except Exception as error:  # whatever a proposer raises
                self._report(error)


def _fault(error: Exception) -> Fault:
    if isinstance(error, MEMORY_FAULTS):
        return Fault.MEMORY
    return Fault.NONSENSE if isinstance(error, NonsenseDraft) else Fault.ERROR


def _are_chances(probs: Tensor, tokens: Sequence[int]) -> bool:
    """Whether each drafted token can have been drawn from its row of `[num_nodes, vocab]`; NaN cannot."""
    chances = probs[range(len(tokens)), tokens]
    return bool(((chances > 0.0) & (chances <= CERTAIN)).all())
