"""Several drafts for one request put together in one tree, the most promising candidates first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gamaneh.core import ROOT, Draft

FADE = 0.97
"""Weight of an old draft after one more; half of it is gone after 23."""

PRIOR_RATE, PRIOR_WEIGHT = 0.5, 2.0
"""What is expected of candidates of which nothing is known, and the drafts that this counts for."""


@dataclass(slots=True)
class Survival:
    """How often drafts were kept up to a depth, from faded counts."""

    reached: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)

    def add(self, depth: int, accepted: int) -> None:
        """One draft whose candidates down to `depth` were verified and the first `accepted` of them kept."""
        missing = depth - len(self.reached)
        self.reached += [0.0] * missing
        self.accepted += [0.0] * missing
        for at in range(min(accepted + 1, depth)):
            self.reached[at] = self.reached[at] * FADE + 1.0
            self.accepted[at] = self.accepted[at] * FADE + (at < accepted)

    def estimate(self, depth: int) -> list[float]:
        """s_1 .. s_depth: the chance that the first i candidates are all kept.

        Each position is drawn towards the one before it.
        """
        alive, rate = 1.0, PRIOR_RATE
        survival = []
        for at in range(depth):
            reached, accepted = (self.reached[at], self.accepted[at]) if at < len(self.reached) else (0.0, 0.0)
            rate = (accepted + rate * PRIOR_WEIGHT) / (reached + PRIOR_WEIGHT)
            alive *= rate
            survival.append(alive)
        return survival


@dataclass(frozen=True, slots=True)
class Part:
    """One proposer's draft, and what is expected of it.

    Args:
        survival: s_1, s_2, ... as deep as the draft is.
    """

    source: str
    draft: Draft
    survival: Sequence[float]

    @property
    def expected(self) -> float:
        """Candidates that are expected to be kept, taking its longest path for the right one."""
        return sum(self.survival)


@dataclass(slots=True)
class _Node:
    """A candidate of the tree."""

    token: int
    parent: int
    source: str
    chance: float


def merge(parts: Sequence[Part], max_nodes: int) -> Draft:
    """One tree of the candidates that survive most often, at most `max_nodes` of them.

    A candidate of several parts counts once, for the part that is surest of it. No candidate survives more often than
    the one before it, so that those taken make a tree.
    """
    nodes = _tree(parts)
    order = sorted(range(len(nodes)), key=lambda node: (-nodes[node].chance, node))[:max_nodes]
    places = {node: place for place, node in enumerate(order)} | {ROOT: ROOT}
    return Draft(
        tuple(nodes[node].token for node in order),
        tuple(places[nodes[node].parent] for node in order),
        sources=tuple(nodes[node].source for node in order),
    )


def best_of(parts: Sequence[Part]) -> Draft:
    """The draft of which most is expected, for rules that take chains only."""
    best = max(parts, key=lambda part: part.expected)
    return Draft(best.draft.tokens, best.draft.parents, sources=(best.source,) * len(best.draft))


def walk(draft: Draft, tokens: Sequence[int]) -> tuple[int, ...]:
    """The nodes of the longest path of `draft` that `tokens` follow from its beginning on."""
    path: list[int] = []
    parent = ROOT
    for token in tokens:
        parent = next((child for child in draft.children(parent) if draft.tokens[child] == token), ROOT)
        if parent == ROOT:
            break
        path.append(parent)
    return tuple(path)


def depth_within(part: Draft, tree: Draft) -> int:
    """How deep `part` was taken into `tree`."""
    found = {ROOT: ROOT}
    children = {(parent, token): node for node, (token, parent) in enumerate(_edges(tree))}
    for node, (token, parent) in enumerate(_edges(part)):
        if parent in found and (found[parent], token) in children:
            found[node] = children[found[parent], token]
    depths = part.depths
    return max((depths[node] for node in found if node != ROOT), default=0)


def _tree(parts: Sequence[Part]) -> list[_Node]:
    """All candidates, each once; a parent comes before its children."""
    nodes: list[_Node] = []
    places: dict[tuple[int, int], int] = {}
    for part in parts:
        renamed = {ROOT: ROOT}
        chances = [part.survival[depth - 1] for depth in part.draft.depths]
        for node, ((token, parent), chance) in enumerate(zip(_edges(part.draft), chances, strict=True)):
            place = renamed[node] = places.setdefault((renamed[parent], token), len(nodes))
            if place == len(nodes):
                nodes.append(_Node(token, renamed[parent], part.source, chance))
            elif chance > nodes[place].chance:
                nodes[place].source, nodes[place].chance = part.source, chance
    return nodes


def _edges(draft: Draft) -> Iterator[tuple[int, int]]:
    return zip(draft.tokens, draft.parents, strict=True)
