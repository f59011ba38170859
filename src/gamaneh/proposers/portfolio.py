"""Several proposers as one: their drafts put together in one tree, by what became of each one's drafts so far."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gamaneh.control.fallback import Quarantine
from gamaneh.control.survival import DraftSource, SurvivalTracker
from gamaneh.core import EMPTY_DRAFT, Draft, Needs, ProposalRow, Proposer
from gamaneh.proposers.guard import Guarded
from gamaneh.proposers.recipe import Ingredients
from gamaneh.proposers.tree import Part, best_of, depth_within, merge, walk

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Made:
    """What was proposed for one request: the parts, by proposer, and the tree that came of them.

    Args:
        tokens: the engine's list of the request's tokens, which grows; `length` of them came before the draft.
    """

    parts: Mapping[str, Draft]
    tree: Draft
    tokens: Sequence[int]
    length: int


class PortfolioProposer(Proposer):
    """Asks all its members and merges their drafts; where the rule takes chains only, the best of them.

    Drafts come without probabilities: which of them is taken depends on all. A rule then takes each candidate as
    certain, which keeps every exact rule exact.

    Args:
        members: by name; each keeps what it knows, and may be asked on its own as well.
        vocab_size: token ids of their drafts are below this.
    """

    name = "portfolio"

    def __init__(self, members: Mapping[str, Proposer], vocab_size: int = sys.maxsize) -> None:
        self.members = dict(members)
        self.quarantine, self.survival = Quarantine(), SurvivalTracker()
        self._guards = {name: Guarded(member, vocab_size, self.quarantine) for name, member in members.items()}
        self.needs = _needs({name: member.needs for name, member in self.members.items()})
        self._made: dict[str, _Made] = {}

    def propose(self, rows: Sequence[ProposalRow]) -> list[Draft]:
        """One tree per row; empty where no member has anything."""
        self.quarantine.tick()
        for row in rows:
            self._learn_of(row.request_id)
        made = {name: self._ask(name, rows) for name in self.members}
        drafts = []
        for at, row in enumerate(rows):
            parts = {name: own[at] for name, own in made.items() if len(own[at])}
            drafts.append(self._merge(row, parts))
            self._made[row.request_id] = _Made(parts, drafts[-1], row.tokens, len(row.tokens))
        return drafts

    def end(self, request_id: str) -> None:
        """Learn from the last draft, and let the members learn from the answer."""
        self._learn_of(request_id)
        self.survival.drop(request_id)
        for guard in self._guards.values():
            guard.end(request_id)

    def forget(self, request_id: str) -> None:
        self._made.pop(request_id, None)
        self.survival.drop(request_id)
        for guard in self._guards.values():
            guard.forget(request_id)

    def memory_bytes(self) -> int:
        """0: what the members hold is told by themselves."""
        return 0

    def _ask(self, name: str, rows: Sequence[ProposalRow]) -> list[Draft]:
        """The drafts of one member; none while it is in quarantine."""
        if not self.quarantine.allows(name):
            return [EMPTY_DRAFT] * len(rows)
        own = [self._row(row, self.members[name].needs) for row in rows]
        drafts = self._guards[name].propose(own, [row.max_nodes > row.max_depth for row in rows])
        if not self.quarantine.allows(name):
            LOGGER.warning("%s: %s failed: %s", self.name, name, self.quarantine.reason(name))
        return drafts

    def _row(self, row: ProposalRow, needs: Needs) -> ProposalRow:
        """The row as a member would have been given it."""
        trees = row.max_nodes > row.max_depth
        nodes = row.max_depth * needs.branching if trees else row.max_depth
        hidden = row.hidden
        if hidden is not None:
            layers = [self.needs.hidden_layers.index(layer) for layer in needs.hidden_layers]
            hidden = hidden[-needs.hidden_window :, layers] if layers else None
        return replace(row, max_nodes=min(nodes, row.max_nodes), hidden=hidden, want_probs=False)

    def _merge(self, row: ProposalRow, drafts: Mapping[str, Draft]) -> Draft:
        if not drafts:
            return EMPTY_DRAFT
        parts = [Part(name, draft, self._expected(name, draft, row.request_id)) for name, draft in drafts.items()]
        return merge(parts, row.max_nodes) if row.max_nodes > row.max_depth else best_of(parts)

    def _expected(self, name: str, draft: Draft, request_id: str) -> list[float]:
        """s_1 .. s_depth; what is negligible counts as 0."""
        found = self.survival.survival(DraftSource(name, draft.grade), request_id, draft.depth)
        return [*found, *[0.0] * (draft.depth - len(found))]

    def _learn_of(self, request_id: str) -> None:
        """Learn how far each member was right, by the tokens that came instead of the last draft."""
        made = self._made.pop(request_id, None)
        if made is None:
            return
        accepted = [made.tree.tokens[node] for node in walk(made.tree, made.tokens[made.length :])]
        for name, draft in made.parts.items():
            depth = depth_within(draft, made.tree)
            kept = min(len(walk(draft, accepted)), depth)
            self.survival.observe(DraftSource(name, draft.grade), request_id, depth, kept)


def _needs(needs: Mapping[str, Needs]) -> Needs:
    """Of all members together, with room for the widest draft and one more path beside it."""
    return Needs(
        hidden_layers=tuple(sorted({layer for need in needs.values() for layer in need.hidden_layers})),
        hidden_window=max(need.hidden_window for need in needs.values()),
        branching=max(need.branching for need in needs.values()) + 1,
        about=f"merges {', '.join(needs)}",
    )


def build(parts: Ingredients) -> Proposer:
    """Return all others as one."""
    return PortfolioProposer(parts.members, parts.vocab_size)
