"""Draft trees: on each level the best candidates branch again, and the likeliest of all stay.

The children of a node are those that the draft model would choose first, second, ... with the
request's own noise (Gumbel top-k, Kool et al. 1903.06059). The first is the token that a chain would
have; under the rule `match` the target draws with the same noise, so the others are where the two
most likely part. As in EAGLE-2 (Li et al. 2406.16858), each level expands its best nodes, and in the
end the best nodes of all levels remain; but a node that cannot remain is not expanded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from gamaneh.core import ROOT, Draft
from gamaneh.proposers.candidates import allowed_scores, likely
from gamaneh.proposers.draft_reader import Reading
from gamaneh.proposers.growth import Beginning


@dataclass(frozen=True, slots=True, eq=False)
class _Node:
    """A candidate. `value` estimates the logarithm of the chance that its whole path is accepted."""

    token: int
    parent: _Node | None
    value: float

    @property
    def path(self) -> list[_Node]:
        """From the first candidate down to this one."""
        return [*(self.parent.path if self.parent else ()), self]


class TreeGrowth:
    """A draft that branches; as `ChainGrowth`, but without probabilities: rules that read them take chains."""

    def __init__(self, beginning: Beginning) -> None:
        self._beginning, self._row, self._style = beginning, beginning.row, beginning.style
        self._token_map = beginning.token_map
        self._depth = 0
        self._kept: list[_Node] = []
        self._frontier: list[_Node] = []

    @property
    def is_open(self) -> bool:
        return self._depth == 0 or (bool(self._frontier) and self._depth < self._row.max_depth)

    def reading(self) -> Reading:
        """The nodes that are to branch, behind those that lead to them."""
        stem = dict.fromkeys(node for end in self._frontier for node in end.path[:-1])
        nodes = [*stem, *self._frontier]
        return Reading(
            self._row.request_id,
            self._beginning.context,
            nodes=[self._token_map.to_draft(node.token) for node in nodes],
            parents=_parents(nodes),
            logit_rows=max(len(self._frontier), 1),
            keep_last=False,
            unchanged=self._beginning.unchanged,
        )

    def take(self, logits: Tensor) -> None:
        """One level more."""
        ends: Sequence[_Node | None] = self._frontier or [None]
        grown = [child for end, said in zip(ends, logits, strict=True) for child in self._children(end, said.float())]
        best = sorted([*self._kept, *grown], key=lambda node: -node.value)
        self._kept = best[: self._row.max_nodes]
        fresh = set(grown)
        self._frontier = [node for node in self._kept if node in fresh][: self._style.branching]
        self._depth += 1

    def draft(self) -> Draft:
        nodes = sorted(self._kept, key=lambda node: len(node.path))
        return Draft(tuple(node.token for node in nodes), _parents(nodes))

    def _children(self, end: _Node | None, logits: Tensor) -> list[_Node]:
        """The candidates behind one node, or behind the request's tokens."""
        path = [node.token for node in end.path] if end else []
        offered = self._token_map.to_target(logits)
        unsure = bool(path) and self._style.is_unsure(logits, offered)
        scores = None if unsure else allowed_scores(self._row, offered, path)
        if scores is None:
            return []
        value, position = end.value if end else 0.0, len(self._row.tokens) + len(path)
        found = likely(self._row, scores, position, self._style.branching, self._style.sampling)
        return [_Node(token, end, value + chance) for chance, token in found]


def _parents(nodes: Sequence[_Node]) -> tuple[int, ...]:
    """Index of each node's parent, which comes before it."""
    places = {node: place for place, node in enumerate(nodes)}
    return tuple(places[node.parent] if node.parent else ROOT for node in nodes)
