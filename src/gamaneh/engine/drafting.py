"""Asking proposers for drafts on behalf of the requests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from torch import Tensor

from gamaneh.control.fallback import Quarantine
from gamaneh.core import AUTO, EMPTY_DRAFT, PLAIN, Draft, Glimpses, ProposalRow, Proposer, Stopwatch, Use
from gamaneh.engine.hidden import HiddenWindow
from gamaneh.engine.sequence import SequenceState
from gamaneh.engine.turn import Turn
from gamaneh.errors import GamanehError
from gamaneh.proposers.guard import Guarded
from gamaneh.sampling.pruning import prune

MOST_FREE = 8
"""Windows of hidden states that are kept for the next requests."""


class Drafters:
    """Holds the proposers, each behind its guard.

    Args:
        vocab_size: token ids of drafts are below this.
    """

    def __init__(self, quarantine: Quarantine, vocab_size: int) -> None:
        self.quarantine, self.vocab_size = quarantine, vocab_size
        self.proposers: dict[str, Proposer] = {}
        self._guards: dict[str, Guarded] = {}
        self._free: list[HiddenWindow] = []

    @property
    def _taps(self) -> tuple[int, ...]:
        """Layers of the target that any proposer reads, in order."""
        layers = {layer for p in self.proposers.values() if p.needs.hidden_layers for layer in p.needs.hidden_layers}
        return tuple(sorted(layers)) if layers else ()

    def taps(self, turns: Sequence[Turn]) -> tuple[int, ...]:
        """Layers of the target that proposers read, in order; none where no request may use such a proposer."""
        taps = self._taps
        return taps if taps and any(self._reads(turn.sequence) for turn in turns) else ()

    def _reads(self, sequence: SequenceState) -> bool:
        """Whether a proposer that the request may use reads hidden states of the target."""
        name = sequence.drafting.proposer
        return name == AUTO or (name != PLAIN and bool(self.proposers[name].needs.hidden_layers))

    def glimpse(
        self, wanted: Mapping[str, Mapping[str, int]], sequences: Mapping[str, SequenceState], watch: Stopwatch
    ) -> Glimpses:
        """Ask instant proposers for what they would offer.

        Args:
            wanted: proposer -> request -> longest draft.
            sequences: by request.
        """
        seen: dict[tuple[str, str], Draft] = {}
        for name, lengths in wanted.items():
            asking = [sequences[request_id] for request_id in lengths]
            rows = [self._row(name, s, length, length) for s, length in zip(asking, lengths.values(), strict=True)]
            drafts = self._ask(name, rows, asking, watch)
            seen |= {(name, request_id): draft for request_id, draft in zip(lengths, drafts, strict=True)}
        return seen

    def propose(self, turns: Sequence[Turn], glimpses: Glimpses, watch: Stopwatch) -> None:
        """Give each turn whose decision allows one its draft; one that was glimpsed is cut to what was decided."""
        unseen: dict[str, list[Turn]] = defaultdict(list)
        for turn in turns:
            name, decision = turn.decision.proposer, turn.decision
            if name == PLAIN:
                continue
            seen = glimpses.get((name, turn.request_id))
            turn.row = self._row(name, turn.sequence, decision.depth, decision.nodes)
            if seen is None:
                unseen[name].append(turn)
            else:
                turn.take(seen.cut(decision.depth))
        for name, own in unseen.items():
            rows = [turn.row for turn in own if turn.row is not None]
            drafts = self._ask(name, rows, [turn.sequence for turn in own], watch)
            for turn, draft in zip(own, drafts, strict=True):
                turn.take(draft)
        watch.drafted = watch.clock()

    def keep_hidden(self, turn: Turn, kept: Sequence[int]) -> None:
        """Keep the tapped hidden states of the turn's rows that are about to be added to the cache."""
        sequence = turn.sequence
        if turn.hidden is None or not self._reads(sequence):
            return
        if sequence.hidden is None:
            reading = (p.needs for p in self.proposers.values() if p.needs.hidden_layers)
            sequence.hidden = self._free.pop() if self._free else HiddenWindow(max(p.hidden_window for p in reading))
        last = kept[-1] + 1 if kept else 0
        rows = turn.hidden[:last] if last == len(kept) else turn.hidden[kept]  # a view, where a list would copy
        sequence.hidden.add(sequence.cached_len, rows)

    def lag(self, request_id: str, length: int, name: str) -> int:
        """Tokens that a proposer has not read yet of a request of this length."""
        return self._guards[name].lag(request_id, length)

    def unfit(self, request_id: str) -> list[str]:
        """Names of the proposers that draft no more for a request, on which they failed."""
        return [name for name, guard in self._guards.items() if guard.is_unfit(request_id)]

    def register(self, proposer: Proposer) -> None:
        """Let requests use one more proposer."""
        self.proposers[proposer.name] = proposer
        self._guards[proposer.name] = Guarded(proposer, self.vocab_size, self.quarantine)
        self._free.clear()

    def let_go(self, sequence: SequenceState, *, complete: bool) -> None:
        """Let all proposers go of a request; of one that is not complete nothing may be learned."""
        for guard in self._guards.values():
            (guard.end if complete else guard.forget)(sequence.request_id)
        if sequence.hidden is not None and len(self._free) < MOST_FREE:
            sequence.hidden.clear()
            self._free.append(sequence.hidden)
        sequence.hidden = None

    def forget(self, request_id: str) -> None:
        """Let all proposers drop a request of which nothing may be learned."""
        for guard in self._guards.values():
            guard.forget(request_id)

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
            hidden=self._hidden(name, sequence),
            salt=sequence.salt,
            draft_sampling=sequence.drafting.draft_sampling,
            prompt_len=sequence.prompt_len,
        )

    def _hidden(self, name: str, sequence: SequenceState) -> Tensor | None:
        """`[num_known, num_layers, hidden]` of the layers that one proposer reads."""
        needs = self.proposers[name].needs
        rows = None if sequence.hidden is None or not needs.hidden_layers else sequence.hidden.last()
        if rows is None:
            return None
        taps = self._taps
        places = [taps.index(layer) for layer in needs.hidden_layers]
        neighbours = places == list(range(places[0], places[-1] + 1))  # a view, where a list would copy
        columns = slice(places[0], places[-1] + 1) if neighbours else places
        return rows[-needs.hidden_window :, columns]

    def _ask(
        self, name: str, rows: Sequence[ProposalRow], sequences: Sequence[SequenceState], watch: Stopwatch
    ) -> list[Draft]:
        drafts = self._guards[name].propose(rows, [sequence.rule.trees for sequence in sequences], watch)
        return [_allowed(sequence, draft) for sequence, draft in zip(sequences, drafts, strict=True)]


def _allowed(sequence: SequenceState, draft: Draft) -> Draft:
    """What the request's mask leaves of a draft, so that the target computes no row for the rest."""
    if sequence.mask is None:
        return draft
    try:
        return prune(draft, sequence.mask, sequence.end_ids)
    except GamanehError:  # the target's own row meets it again, and ends this request alone
        return EMPTY_DRAFT
