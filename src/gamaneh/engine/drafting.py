"""Asking proposers for drafts, and not trusting them: what fails is left out, never a wrong token."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gamaneh.control.quarantine import Fault, Quarantine
from gamaneh.core import EMPTY_DRAFT, PLAIN, Draft, Needs, ProposalRow, Proposer, Rule, Use, Verdict
from gamaneh.engine.hidden import HiddenWindow
from gamaneh.engine.scheduler import Scheduled
from gamaneh.engine.sequence import SequenceState
from gamaneh.errors import GamanehError, OutOfMemory
from gamaneh.sampling.pruning import prune

Clock = Callable[[], float]

CERTAIN = 1.001
"""A probability of 1, and what rounding may add to it."""


class NonsenseDraft(ValueError):
    """A proposer returned what cannot be a draft."""


_FAULTS: Mapping[type[Exception], Fault] = {
    NonsenseDraft: Fault.NONSENSE,
    MemoryError: Fault.MEMORY,
    OutOfMemory: Fault.MEMORY,
    torch.OutOfMemoryError: Fault.MEMORY,
}


@dataclass(slots=True)
class Drafts:
    """The drafts of one round.

    Args:
        by_request: draft of each request; those without one are not in it.
        rows: what each proposer was asked.
        seconds: time that each proposer took, looks before the decision included.
        lag: tokens that each proposer had to read first.
    """

    by_request: dict[str, Draft] = field(default_factory=dict)
    rows: dict[str, list[ProposalRow]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    lag: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def of(self, request_id: str) -> Draft:
        return self.by_request.get(request_id, EMPTY_DRAFT)

    def depth(self, proposer: str) -> int:
        """Longest draft that this proposer made."""
        return max((self.of(row.request_id).depth for row in self.rows.get(proposer, [])), default=0)


class Drafting:
    """Holds the proposers and keeps their failures away from the requests."""

    def __init__(
        self,
        proposers: Mapping[str, Proposer],
        quarantine: Quarantine,
        vocab_size: int,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.proposers, self.quarantine, self.vocab_size, self.clock = proposers, quarantine, vocab_size, clock
        self._read: dict[str, dict[str, int]] = {}
        self._round = Drafts()
        self._seen: dict[tuple[str, str], Draft] = {}

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers of the target that any proposer reads, in order."""
        return tuple(sorted({layer for p in self.proposers.values() for layer in p.needs.hidden_layers}))

    def keep_hidden(self, sequence: SequenceState, rows: Tensor) -> None:
        """Keep `[num_rows, num_taps, hidden]` of the tokens that are about to be added to the cache."""
        if sequence.hidden is None:
            reading = (p.needs for p in self.proposers.values() if p.needs.hidden_layers)
            sequence.hidden = HiddenWindow(max(needs.hidden_window for needs in reading))
        sequence.hidden.add(sequence.cached_len, rows)

    def lag(self, sequence: SequenceState) -> dict[str, int]:
        """Tokens of the request that each proposer has not read yet."""
        read = self._read.get(sequence.request_id, {})
        return {name: len(sequence.tokens) - read.get(name, 0) for name in self.proposers}

    def peek(self, name: str, sequences: Sequence[SequenceState], max_depth: int) -> dict[str, Draft]:
        """Drafts that this proposer has for these requests; `propose` uses them, cut to what was decided."""
        drafts = self._ask(name, [self._row(name, s, max_depth, max_depth) for s in sequences], sequences)
        self._seen |= {(name, request_id): draft for request_id, draft in drafts.items()}
        return drafts

    def propose(self, plan: Sequence[Scheduled]) -> Drafts:
        """One draft for each row whose decision allows one."""
        asked: dict[str, list[Scheduled]] = defaultdict(list)
        for item in plan:
            if item.decision.proposer != PLAIN:
                asked[item.decision.proposer].append(item)
        for name, items in asked.items():
            self._draft(name, items)
        drafts, self._round, self._seen = self._round, Drafts(), {}
        return drafts

    def observe(self, drafts: Drafts, verdicts: Mapping[str, Verdict]) -> None:
        """Tell each proposer what became of its drafts."""
        for name, rows in drafts.rows.items():
            judged = [row for row in rows if row.request_id in verdicts]
            try:
                self.proposers[name].observe(judged, [verdicts[row.request_id] for row in judged])
            except Exception as error:
                self._failed(name, rows, error)

    def drop(self, request_ids: Iterable[str]) -> None:
        """Let all proposers forget these requests."""
        ids = list(request_ids)
        for request_id in ids:
            self._read.pop(request_id, None)
        for name, proposer in self.proposers.items():
            try:
                proposer.drop(ids)
            except Exception as error:
                self._report(name, error)

    def _draft(self, name: str, items: Sequence[Scheduled]) -> None:
        """Drafts of one proposer: those that were seen already, cut, and the others."""
        rows = [self._row(name, item.sequence, item.decision.depth, item.decision.nodes) for item in items]
        self._round.rows[name] = rows
        unseen = [at for at, item in enumerate(items) if not self._saw(name, item)]
        if unseen:
            asked = self._ask(name, [rows[at] for at in unseen], [items[at].sequence for at in unseen])
            self._round.by_request |= asked
        for row in (row for at, row in enumerate(rows) if at not in unseen):
            self._round.by_request[row.request_id] = self._seen[name, row.request_id].cut(row.max_depth)

    def _row(self, name: str, sequence: SequenceState, max_depth: int, max_nodes: int) -> ProposalRow:
        wants_probs = sequence.rule.wants_probs
        return ProposalRow(
            request_id=sequence.request_id,
            tokens=sequence.tokens,
            max_depth=max_depth,
            max_nodes=max_nodes,
            sampler=sequence.sampler,
            use=Use.DRAFT if wants_probs else Use.TARGET,
            want_probs=wants_probs,
            reference=sequence.reference,
            mask=sequence.mask,
            hidden=self._hidden(self.proposers[name].needs, sequence),
            salt=sequence.salt,
        )

    def _hidden(self, needs: Needs, sequence: SequenceState) -> Tensor | None:
        """`[num_known, num_layers, hidden]` of the layers that one proposer reads."""
        rows = None if sequence.hidden is None or not needs.hidden_layers else sequence.hidden.last()
        if rows is None:
            return None
        taps = self.taps
        places = [taps.index(layer) for layer in needs.hidden_layers]
        neighbours = places == list(range(places[0], places[-1] + 1))  # a view, where a list would copy
        columns = slice(places[0], places[-1] + 1) if neighbours else places
        return rows[-needs.hidden_window :, columns]

    def _saw(self, name: str, item: Scheduled) -> bool:
        return (name, item.sequence.request_id) in self._seen

    def _ask(self, name: str, rows: list[ProposalRow], sequences: Sequence[SequenceState]) -> dict[str, Draft]:
        """Checked drafts by request, none where the proposer failed; timed."""
        started = self.clock()
        self._round.lag[name] += sum(self._catch_up(name, sequence) for sequence in sequences)
        drafts = self._try(name, rows, sequences)
        self._round.seconds[name] += self.clock() - started
        return {row.request_id: draft for row, draft in zip(rows, drafts, strict=True)}

    def _catch_up(self, name: str, sequence: SequenceState) -> int:
        read = self._read.setdefault(sequence.request_id, {})
        lag = len(sequence.tokens) - read.get(name, 0)
        read[name] = len(sequence.tokens)
        return lag

    def _try(self, name: str, rows: list[ProposalRow], sequences: Sequence[SequenceState]) -> list[Draft]:
        try:
            made = self.proposers[name].propose(rows)
            for row, draft, sequence in zip(rows, made, sequences, strict=True):
                self._check(row, draft, sequence.rule)
        except Exception as error:
            self._failed(name, rows, error)
            return [EMPTY_DRAFT] * len(rows)
        self.quarantine.passed(name)
        return [_allowed(sequence, draft) for sequence, draft in zip(sequences, made, strict=True)]

    def _failed(self, name: str, rows: list[ProposalRow], error: Exception) -> None:
        self._report(name, error)
        self.drop([row.request_id for row in rows])

    def _report(self, name: str, error: Exception) -> None:
        self.quarantine.report(name, f"{type(error).__name__}: {error}", _fault(error))

    def _check(self, row: ProposalRow, draft: Draft, rule: Rule) -> None:
        if len(draft) > row.max_nodes or draft.depth > row.max_depth:
            raise NonsenseDraft(
                f"draft must have at most {row.max_nodes} nodes of depth {row.max_depth}, got {len(draft)}"
            )
        if any(not 0 <= token < self.vocab_size for token in draft.tokens):
            raise NonsenseDraft(f"draft tokens must be below {self.vocab_size}, got {draft.tokens}")
        if not draft.is_chain and not rule.trees:
            raise NonsenseDraft(f"rule {rule.name} must be given chains, got a tree")
        if draft.probs is not None and not _are_chances(draft.probs, draft.tokens):
            raise NonsenseDraft("draft probabilities of the drafted tokens must be above 0 and at most 1")


def _are_chances(probs: Tensor, tokens: Sequence[int]) -> bool:
    """Whether each drafted token can have been drawn from its row of `[num_nodes, vocab]`; NaN cannot."""
    chances = probs[range(len(tokens)), tokens]
    return bool(((chances > 0.0) & (chances <= CERTAIN)).all())


def _fault(error: Exception) -> Fault:
    return next((fault for kind, fault in _FAULTS.items() if isinstance(error, kind)), Fault.ERROR)


def _allowed(sequence: SequenceState, draft: Draft) -> Draft:
    """What the request's mask leaves of a draft, so that the target computes no row for the rest."""
    if sequence.mask is None:
        return draft
    try:
        return prune(draft, sequence.mask, sequence.end_ids)
    except GamanehError:  # the target's own row meets it again, and ends this request alone
        return EMPTY_DRAFT
