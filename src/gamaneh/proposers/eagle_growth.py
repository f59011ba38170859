"""A draft that grows level by level: a chain, or a tree that follows the most promising nodes."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gamaneh.core import EMPTY_DRAFT, ROOT, Draft, ProposalRow
from gamaneh.proposers.candidates import DraftSampling, Found, allowed_scores, likely


@dataclass(slots=True)
class Growth:
    """One request's draft while it grows.

    A tree grows best-first (Li et al. 2024, EAGLE-2): of each level the `width` nodes of highest score are
    expanded by `width` children each, and of all nodes the `max_nodes` best are kept. The score of a node is the
    logarithm of the chance of its path. It falls along a path, so that what is kept is a tree.

    Args:
        width: children per node, and nodes expanded per level; 1 makes a chain.
    """

    row: ProposalRow
    width: int
    sampling: DraftSampling
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    probs: list[Tensor] = field(default_factory=list)
    fresh: list[int] = field(default_factory=list)

    @classmethod
    def begin(cls, row: ProposalRow, sampling: DraftSampling) -> Growth:
        """As wide as the nodes allow that the request may have; `max_nodes` of a chain is its `max_depth`."""
        return cls(row, max(row.max_nodes // row.max_depth, 1), sampling)

    def expand(self, node: int, logits: Tensor) -> None:
        """Add the children of a node, by float32 logits `[vocab]`; none where no token is allowed.

        Raises:
            BadLogits: the highest logit is NaN or infinite.
        """
        depth = 1 if node == ROOT else self.depths[node] + 1
        before = 0.0 if node == ROOT else self.scores[node]
        for chance, token in self._found(logits, self.path(node)):
            self.fresh.append(len(self.tokens))
            self.tokens.append(token)
            self.parents.append(node)
            self.depths.append(depth)
            self.scores.append(before + chance)

    def frontier(self) -> list[int]:
        """The best of the nodes that were added since the last call; none once the draft is deep enough."""
        fresh, self.fresh = self.fresh, []
        if not fresh or self.depths[fresh[0]] >= self.row.max_depth:
            return []
        return sorted(sorted(fresh, key=lambda node: -self.scores[node])[: self.width])

    def path(self, node: int) -> list[int]:
        """Tokens from the first candidate down to `node`; none for `ROOT`."""
        return [self.tokens[at] for at in self.line(node)]

    def line(self, node: int) -> list[int]:
        """Nodes from the first candidate down to `node`; none for `ROOT`."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]

    def draft(self) -> Draft:
        """What has grown, cut to the best nodes."""
        if not self.tokens:
            return EMPTY_DRAFT
        if self.width == 1:
            return Draft.chain(self.tokens, torch.stack(self.probs) if self.probs else None)
        best = sorted(range(len(self.tokens)), key=lambda node: (-self.scores[node], node))
        kept = sorted(best[: self.row.max_nodes])
        places = {node: place for place, node in enumerate(kept)}
        parents = tuple(places.get(self.parents[node], ROOT) for node in kept)
        return Draft(tuple(self.tokens[node] for node in kept), parents)

    def _found(self, logits: Tensor, path: list[int]) -> Found:
        """The best tokens behind `path`; none where the request allows none that the head can draft."""
        scores = allowed_scores(self.row, logits, path)
        if scores is None:
            return []
        if self.row.want_probs and self.sampling == "request":
            self.probs.append(self.row.sampler.probs(scores))
        return likely(self.row, scores, len(self.row.tokens) + len(path), self.width, self.sampling)
