"""Asking proposers for drafts, and not trusting them: what fails is left out, never a wrong token."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from gamaneh.control.fallback import Fault, Quarantine
from gamaneh.core import EMPTY_DRAFT, PLAIN, Draft, Needs, ProposalRow, Proposer, Use
from gamaneh.engine.hidden import HiddenWindow
from gamaneh.engine.sequence import SequenceState
from gamaneh.engine.turn import Turn
from gamaneh.errors import GamanehError
from gamaneh.proposers.guard import MEMORY_FAULTS, Guarded, NonsenseDraft
from gamaneh.sampling.pruning import prune

Clock = Callable[[], float]


@dataclass(slots=True)
class Consulted:
    """What asking one proposer took in a round.

    Args:
        seconds: time that it took, looks before the decision included.
        lag: tokens that it had to read first.
        requests: that had it draft.
        longest: draft length of the longest draft that it made for them.
    """

    seconds: float = 0.0
    lag: int = 0
    requests: int = 0
    longest: int = 0


class Drafters:
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
        self._guards: dict[str, Guarded] = {}
        self.consulted: dict[str, Consulted] = defaultdict(Consulted)
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

    def propose(self, turns: Sequence[Turn]) -> None:
        """Give each turn whose decision allows one its draft; one that was glimpsed is cut to what was decided."""
        asked: dict[str, list[Turn]] = defaultdict(list)
        for turn in turns:
            if turn.decision.proposer != PLAIN:
                asked[turn.decision.proposer].append(turn)
        for name, own in asked.items():
            self._draft(name, own)
        self._seen = {}

    def begin(self) -> None:
        """Start the books of a new round."""
        self.consulted = defaultdict(Consulted)

    def end(self, request_id: str) -> None:
        """Let all proposers go of a request whose answer is complete."""
        self._read.pop(request_id, None)
        for name in self.proposers:
            self._guard(name).end(request_id)

    def forget(self, request_id: str) -> None:
        """Let all proposers drop a request of which nothing may be learned."""
        self._read.pop(request_id, None)
        for name in self.proposers:
            self._guard(name).forget(request_id)

    def unfit(self, request_id: str) -> list[str]:
        """Names of the proposers that draft no more for a request, on which they failed."""
        return [name for name, guard in self._guards.items() if guard.is_unfit(request_id)]

    def _draft(self, name: str, turns: Sequence[Turn]) -> None:
        """Drafts of one proposer: those that were seen already, cut, and the others."""
        unseen = []
        for turn in turns:
            turn.row = self._row(name, turn.sequence, turn.decision.depth, turn.decision.nodes)
            seen = self._seen.get((name, turn.request_id))
            if seen is None:
                unseen.append(turn)
            else:
                turn.take(seen.cut(turn.row.max_depth))
        if unseen:
            rows = [turn.row for turn in unseen if turn.row is not None]
            drafts = self._ask(name, rows, [turn.sequence for turn in unseen])
            for turn in unseen:
                turn.take(drafts[turn.request_id])
        consulted = self.consulted[name]
        consulted.requests += len(turns)
        consulted.longest = max(turn.draft.depth for turn in turns)

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
            reference=sequence.request.reference,
            mask=sequence.mask,
            hidden=self._hidden(self.proposers[name].needs, sequence),
            salt=sequence.salt,
            draft_sampling=sequence.drafting.draft_sampling,
            prompt_len=sequence.prompt_len,
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

    def _ask(self, name: str, rows: list[ProposalRow], sequences: Sequence[SequenceState]) -> dict[str, Draft]:
        """Checked drafts by request, none where the proposer failed; timed."""
        started = self.clock()
        self.consulted[name].lag += sum(self._catch_up(name, sequence) for sequence in sequences)
        drafts = self._try(name, rows, sequences)
        self.consulted[name].seconds += self.clock() - started
        return {row.request_id: draft for row, draft in zip(rows, drafts, strict=True)}

    def _catch_up(self, name: str, sequence: SequenceState) -> int:
        read = self._read.setdefault(sequence.request_id, {})
        lag = len(sequence.tokens) - read.get(name, 0)
        read[name] = len(sequence.tokens)
        return lag

    def _try(self, name: str, rows: list[ProposalRow], sequences: Sequence[SequenceState]) -> list[Draft]:
        drafts, passed = self._guard(name).propose(rows, [sequence.rule.trees for sequence in sequences])
        if passed:
            self.quarantine.passed(name)
        for row in () if passed else rows:  # what it had read is gone
            self._read.get(row.request_id, {}).pop(name, None)
        return [_allowed(sequence, draft) for sequence, draft in zip(sequences, drafts, strict=True)]

    def _guard(self, name: str) -> Guarded:
        """The wrapper of a proposer, which may be registered or exchanged at any time."""
        guard = self._guards.get(name)
        if guard is None or guard.proposer is not self.proposers[name]:
            report, note = partial(self._report, name), partial(self._note, name)
            guard = self._guards[name] = Guarded(self.proposers[name], self.vocab_size, report, note)
        return guard

    def _note(self, name: str, error: Exception) -> None:
        self.quarantine.note(name, _fault(error))

    def _report(self, name: str, error: Exception) -> None:
        self.quarantine.report(name, f"{type(error).__name__}: {error}", _fault(error))


def _fault(error: Exception) -> Fault:
    if isinstance(error, MEMORY_FAULTS):
        return Fault.MEMORY
    return Fault.NONSENSE if isinstance(error, NonsenseDraft) else Fault.ERROR


def _allowed(sequence: SequenceState, draft: Draft) -> Draft:
    """What the request's mask leaves of a draft, so that the target computes no row for the rest."""
    if sequence.mask is None:
        return draft
    try:
        return prune(draft, sequence.mask, sequence.end_ids)
    except GamanehError:  # the target's own row meets it again, and ends this request alone
        return EMPTY_DRAFT
