"""Asking proposers for drafts, and not trusting them: what fails is left out, never a wrong token."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gamaneh.control.quarantine import Quarantine
from gamaneh.core import EMPTY_DRAFT, PLAIN, Draft, ProposalRow, Proposer, Rule, Use, Verdict
from gamaneh.engine.scheduler import Scheduled
from gamaneh.engine.sequence import SequenceState
from gamaneh.errors import GamanehError
from gamaneh.sampling.pruning import prune


@dataclass(slots=True)
class Drafts:
    """The drafts of one round.

    Args:
        by_request: draft of each request; those without one are not in it.
        rows: what each proposer was asked.
        seconds: time that each proposer took.
    """

    by_request: dict[str, Draft] = field(default_factory=dict)
    rows: dict[str, list[ProposalRow]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    def of(self, request_id: str) -> Draft:
        return self.by_request.get(request_id, EMPTY_DRAFT)


class Drafting:
    """Holds the proposers and keeps their failures away from the requests."""

    def __init__(self, proposers: Mapping[str, Proposer], quarantine: Quarantine, vocab_size: int) -> None:
        self.proposers, self.quarantine, self.vocab_size = proposers, quarantine, vocab_size

    @property
    def taps(self) -> tuple[int, ...]:
        """Layers of the target that any proposer reads, in order."""
        return tuple(sorted({layer for p in self.proposers.values() for layer in p.needs.hidden_layers}))

    def propose(self, plan: Sequence[Scheduled]) -> Drafts:
        """One draft for each row whose decision allows one."""
        drafts = Drafts()
        sequences: dict[str, SequenceState] = {}
        for item in plan:
            if item.decision.proposer != PLAIN:
                drafts.rows.setdefault(item.decision.proposer, []).append(_proposal_row(item))
                sequences[item.sequence.request_id] = item.sequence
        for name, rows in drafts.rows.items():
            started = time.perf_counter()
            made = self._ask(name, rows, sequences)
            drafts.seconds[name] = time.perf_counter() - started
            drafts.by_request |= {row.request_id: draft for row, draft in zip(rows, made, strict=True)}
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
        for name, proposer in self.proposers.items():
            try:
                proposer.drop(ids)
            except Exception as error:
                self.quarantine.report(name, f"{type(error).__name__}: {error}")

    def _ask(self, name: str, rows: list[ProposalRow], sequences: Mapping[str, SequenceState]) -> list[Draft]:
        try:
            made = self.proposers[name].propose(rows)
            for row, draft in zip(rows, made, strict=True):
                self._check(row, draft, sequences[row.request_id].rule)
        except Exception as error:
            self._failed(name, rows, error)
            return [EMPTY_DRAFT] * len(rows)
        self.quarantine.passed(name)
        return [_allowed(sequences[row.request_id], draft) for row, draft in zip(rows, made, strict=True)]

    def _failed(self, name: str, rows: list[ProposalRow], error: Exception) -> None:
        self.quarantine.report(name, f"{type(error).__name__}: {error}")
        self.drop([row.request_id for row in rows])

    def _check(self, row: ProposalRow, draft: Draft, rule: Rule) -> None:
        if len(draft) > row.max_nodes or draft.depth > row.max_depth:
            raise ValueError(
                f"draft must have at most {row.max_nodes} nodes of depth {row.max_depth}, got {len(draft)}"
            )
        if any(not 0 <= token < self.vocab_size for token in draft.tokens):
            raise ValueError(f"draft tokens must be below {self.vocab_size}, got {draft.tokens}")
        if not draft.is_chain and not rule.trees:
            raise ValueError(f"rule {rule.name} must be given chains, got a tree")


def _allowed(sequence: SequenceState, draft: Draft) -> Draft:
    """What the request's mask leaves of a draft, so that the target computes no row for the rest."""
    if sequence.mask is None:
        return draft
    try:
        return prune(draft, sequence.mask, sequence.end_ids)
    except GamanehError:  # the target's own row meets it again, and ends this request alone
        return EMPTY_DRAFT


def _proposal_row(item: Scheduled) -> ProposalRow:
    sequence = item.sequence
    return ProposalRow(
        request_id=sequence.request_id,
        tokens=sequence.tokens,
        max_depth=item.decision.depth,
        max_nodes=item.decision.nodes,
        sampler=sequence.sampler,
        use=Use.DRAFT if sequence.rule.wants_probs else Use.TARGET,
        want_probs=sequence.rule.wants_probs,
        reference=sequence.reference,
        hidden=sequence.hidden,
    )
