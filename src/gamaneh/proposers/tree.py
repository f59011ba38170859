"""How drafts grow: the one builder of chains and trees, and what else is done with trees of candidates."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Self

import torch
from torch import Tensor

from gamaneh.core import EMPTY_DRAFT, ROOT, Draft, ProposalRow
from gamaneh.errors import BadLogits
from gamaneh.proposers.builtin import DRAFT_BRANCHING, MIN_CONFIDENCE
from gamaneh.proposers.recipe import Ingredients
from gamaneh.sampling import blocks
from gamaneh.sampling.noise import check_highest


@dataclass(frozen=True, slots=True)
class Style:
    """The form of drafts.

    Args:
        min_confidence: as the option; 0 ends no path.
        branching: candidates on each level of a tree; 1 makes chains.
    """

    min_confidence: float = 0.0
    branching: int = 1

    @classmethod
    def asked(cls, parts: Ingredients) -> Self:
        """Return the form that the options of a proposer with trees ask for."""
        return cls(parts.value(MIN_CONFIDENCE), parts.value(DRAFT_BRANCHING) or 1)


CHAINS = Style()


class TreeBuilder:
    """One request's draft while it grows, level by level; a chain is a tree of width 1.

    A tree is expanded and reranked as in EAGLE-2 (Li et al. 2024, 2406.16858): of each level the `width` most promising
    nodes are expanded by `width` children each, and of all nodes the `max_nodes` most promising remain. A node that
    cannot remain is not expanded. The children of a node are those that its maker would choose first, second, ... with
    the request's own noise (Gumbel top-k, Kool et al. 2019, 1903.06059): the first is the token that a chain would
    have; under the rule `match` the target draws with the same noise, so the others are where the two most likely part.

    Attributes:
        tokens, parents, depths: of all nodes that were ever found.
        frontier: nodes that are expanded next, the most promising first; `ROOT` alone at the beginning.
        depth: levels so far.
    """

    def __init__(self, row: ProposalRow, style: Style = CHAINS) -> None:
        self.row, self.style = row, style
        self.width = style.branching if row.max_nodes > row.max_depth else 1
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self.frontier: list[int] = [ROOT]
        self.depth = 0
        self._values: list[float] = []  # logarithm of the estimated chance that the whole path is accepted
        self._probs: list[Tensor] = []
        self._kept: list[int] = []  # the most promising first
        self._form_given = False

    @property
    def is_open(self) -> bool:
        """Whether the draft may grow further."""
        return bool(self.frontier) and self.depth < self.row.max_depth

    @property
    def sequence(self) -> list[int]:
        """The request's tokens and those of the draft, which has one path."""
        return [*self.row.tokens, *self.tokens]

    def grow(self, offered: Sequence[Tensor] | Tensor, said: Sequence[Tensor] | Tensor | None = None) -> None:
        """Add one level.

        Args:
            offered: float32 logits `[vocab]` of what follows each node of the frontier, -inf for tokens that cannot
                be drafted.
            said: float32 logits `[draft_vocab]` of all tokens, by which `min_confidence` goes; None for the same.

        Raises:
            BadLogits: the highest logit is NaN or infinite.
        """
        said = offered if said is None else said
        fresh = [
            child
            for node, own, heard in zip(self.frontier, offered, said, strict=True)
            if node == ROOT or not self._is_unsure(own, heard)
            for child in self._expand(node, own)
        ]
        self.depth += 1
        self._kept = sorted([*self._kept, *fresh], key=lambda node: -self._values[node])
        if self.width > 1:
            self._kept = self._kept[: self.row.max_nodes]
        alive = set(fresh)
        self.frontier = [node for node in self._kept if node in alive][: self.width]

    def fill(self, places: Sequence[Place], rows: Sequence[Tensor] | Tensor) -> None:
        """Take a tree whose form was decided beforehand; nothing grows behind it.

        Args:
            rows: for each depth float32 logits `[vocab]`, whatever the tokens before.
        """
        guesses = self._guesses(rows, widths(places))
        nodes = {ROOT: ROOT}
        for at, place in enumerate(places):
            found = guesses[place.depth - 1] if place.depth <= len(guesses) else []
            if place.parent in nodes and place.rank < len(found):
                nodes[at] = self._add(found[place.rank], nodes[place.parent], 0.0)
                self._kept.append(nodes[at])
        self.frontier, self._form_given = [], True

    def line(self, node: int) -> list[int]:
        """Nodes from the first candidate down to `node`; none for `ROOT`."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]

    def stem(self) -> tuple[list[int], tuple[int, ...]]:
        """The nodes of the frontier behind those that lead to them, and the place of each one's parent among these."""
        above = dict.fromkeys(node for end in self.frontier if end != ROOT for node in self.line(end)[:-1])
        nodes = [*above, *(end for end in self.frontier if end != ROOT)]
        return nodes, self._places(nodes)

    def draft(self) -> Draft:
        """What has grown, cut to the most promising nodes."""
        if not self._kept:
            return EMPTY_DRAFT
        nodes = self._kept if self._form_given else sorted(self._kept, key=lambda node: self.depths[node])
        probs = torch.stack(self._probs) if self._probs else None
        return Draft(tuple(self.tokens[node] for node in nodes), self._places(nodes), probs)

    def _expand(self, node: int, offered: Tensor) -> list[int]:
        """Add the children of a node; none where the request allows none of the tokens that can be drafted."""
        path = [self.tokens[above] for above in self.line(node)]
        scores = allowed_scores(self.row, offered, path)
        if scores is None:
            return []
        position = len(self.row.tokens) + len(path)
        before = 0.0 if node == ROOT else self._values[node]
        if self.width == 1:
            self._note_probs(scores)
            return [self._add(pick(self.row, scores, position), node, before)]
        found = likely(self.row, scores, position, self.width)
        return [self._add(token, node, before + chance) for chance, token in found]

    def _add(self, token: int, parent: int, value: float) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        self.depths.append(1 if parent == ROOT else self.depths[parent] + 1)
        self._values.append(value)
        return len(self.tokens) - 1

    def _note_probs(self, scores: Tensor) -> None:
        if self.row.want_probs and self.row.draft_sampling == "request":
            self._probs.append(self.row.sampler.probs(scores))

    def _is_unsure(self, offered: Tensor, said: Tensor) -> bool:
        least = self.style.min_confidence
        return least > 0.0 and confidence(offered, said) < least

    def _guesses(self, rows: Sequence[Tensor] | Tensor, counts: Sequence[int]) -> list[list[int]]:
        """For each depth the best tokens, noise included; what is said to come before them are the best above."""
        guesses: list[list[int]] = []
        for level, count in enumerate(counts):
            scores = allowed_scores(self.row, rows[level], [first for first, *_ in guesses])
            if scores is None:
                break
            position = len(self.row.tokens) + level
            if count == 1:
                guesses.append([pick(self.row, scores, position)])
            else:
                guesses.append([token for _, token in best(self.row, scores, position, count)])
        return guesses

    def _places(self, nodes: Sequence[int]) -> tuple[int, ...]:
        """Index of each node's parent among `nodes`, where it comes first."""
        places = {node: place for place, node in enumerate(nodes)}
        return tuple(places.get(self.parents[node], ROOT) for node in nodes)


Found = list[tuple[float, int]]
"""Tokens, best first, each behind a number that ranks it."""


def confidence(offered: Tensor, said: Tensor) -> float:
    """The share of the likeliest of the `offered` logits `[vocab]` among all that is `said`, `[draft_vocab]`."""
    return float((offered.amax() - said.logsumexp(0)).exp())


def allowed_scores(row: ProposalRow, offered: Tensor, path: Sequence[int]) -> Tensor | None:
    """The request's scores `[vocab]` behind `path`; None where it allows none of the `offered` tokens.

    Args:
        offered: float32 logits `[vocab]`, -inf for tokens that cannot be drafted.

    Raises:
        BadLogits: the highest logit is not finite.
    """
    check_highest(float(offered.max()))
    try:
        scores = row.sampler.scores(offered, path)
    except BadLogits:  # all that is offered is masked
        return None
    highest = float(scores.max())
    if highest == -math.inf:
        return None
    check_highest(highest)
    return scores


def pick(row: ProposalRow, scores: Tensor, position: int) -> int:
    """The candidate for `position`, from scores that allow one."""
    if row.draft_sampling == "greedy":
        return blocks.argmax(scores)
    return row.sampler.pick(scores, position, row.use)


def best(row: ProposalRow, scores: Tensor, position: int, count: int) -> Found:
    """The `count` best candidates, fewer where fewer are allowed; `pick` takes the first of them.

    Each comes behind its score, with noise where it was drawn.
    """
    if row.draft_sampling == "greedy":
        values, ids = blocks.largest(scores, count)
        return [
            (value, token) for value, token in zip(values.tolist(), ids.tolist(), strict=True) if value != -math.inf
        ]
    return row.sampler.ranked(scores, position, row.use, count)


def likely(row: ProposalRow, scores: Tensor, position: int, count: int) -> Found:
    """The same behind logarithms of their chances to be the target's.

    Of greedy drafts that is the drafter's own probability. Of draws it is a matter of how close the sums of
    score and noise lie, the best that is left out among them: the target's scores differ from the drafter's,
    its noise does not.
    """
    certain = row.draft_sampling == "greedy" or row.sampler.greedy
    found = best(row, scores, position, count if certain else count + 1)
    rivals = scores if certain else torch.tensor([value for value, _ in found])
    total = float(rivals.float().logsumexp(0))
    return [(min(value - total, 0.0), token) for value, token in found[:count]]


# Trees of guesses whose form is decided before anything is guessed (Cai et al. 2024, 2401.10774, section 2.3.3).

Shares = tuple[tuple[float, ...], ...]
"""For each depth, the measured shares of tokens that were the first, second, ... guess."""


class Place(NamedTuple):
    """A node of a tree of guesses.

    Args:
        parent: index of its parent, which comes before it; `ROOT` for the first candidates.
        depth: 1 for the first candidates.
        rank: which guess for its depth it is, 0 for the best.
    """

    parent: int
    depth: int
    rank: int


@lru_cache(maxsize=256)
def static_tree(shares: Shares, max_depth: int, max_nodes: int) -> tuple[Place, ...]:
    """The tree of at most `max_nodes` nodes of which most are expected to be accepted.

    A node is accepted if all guesses on its path are right; their shares are multiplied, as if they were
    independent. As the product falls along a path and from guess to guess, the nodes are found best first.
    """
    levels = shares[:max_depth]
    places: list[Place] = []
    reachable = [*_child(levels, 1.0, ROOT, 1)]
    while reachable and len(places) < max_nodes:
        lost, place = heapq.heappop(reachable)
        for entry in (*_child(levels, -lost, len(places), place.depth + 1), *_sibling(levels, -lost, place)):
            heapq.heappush(reachable, entry)
        places.append(place)
    return tuple(places)


def widths(places: Sequence[Place]) -> list[int]:
    """For each depth, how many guesses the tree uses."""
    counts = [0] * max((place.depth for place in places), default=0)
    for place in places:
        counts[place.depth - 1] = max(counts[place.depth - 1], place.rank + 1)
    return counts


_Entry = tuple[float, Place]
"""The chance of a node, negative, so that the best comes first."""


def _child(levels: Shares, chance: float, node: int, depth: int) -> Iterator[_Entry]:
    """The best guess below a node, if there can be one."""
    if depth <= len(levels) and levels[depth - 1] and levels[depth - 1][0] > 0.0:
        yield -chance * levels[depth - 1][0], Place(node, depth, 0)


def _sibling(levels: Shares, chance: float, place: Place) -> Iterator[_Entry]:
    """The next guess beside a node, if there can be one."""
    shares = levels[place.depth - 1][place.rank : place.rank + 2]
    if len(shares) == 2 and shares[1] > 0.0:
        yield -chance * shares[1] / shares[0], Place(place.parent, place.depth, place.rank + 1)


# Several drafts for one request put together in one tree, the most promising candidates first.


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
    nodes = _union(parts)
    order = sorted(range(len(nodes)), key=lambda node: (-nodes[node].chance, node))[:max_nodes]
    places = {node: place for place, node in enumerate(order)} | {ROOT: ROOT}
    return Draft(
        tuple(nodes[node].token for node in order),
        tuple(places[nodes[node].parent] for node in order),
        sources=tuple(nodes[node].source for node in order),
    )


def best_of(parts: Sequence[Part]) -> Draft:
    """The draft of which most is expected, for rules that take chains only."""
    most = max(parts, key=lambda part: part.expected)
    return Draft(most.draft.tokens, most.draft.parents, sources=(most.source,) * len(most.draft))


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


def _union(parts: Sequence[Part]) -> list[_Node]:
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
