"""Earlier answers, kept for those that may see them: bounded, the oldest go first."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gamaneh.proposers.context_tree import ContextTree

GENERATIONS = 8
"""Parts that a full store consists of: an eighth of it is forgotten at a time."""


@dataclass(eq=False, slots=True)
class _Generation:
    """Answers of one owner that are forgotten together."""

    owner: str
    tree: ContextTree


class SharedStore:
    """Answers by owner. Nobody is shown another owner's.

    A context tree cannot forget a text, so the answers of an owner lie in several trees, of which only the newest
    grows. When there are too many tokens, over all owners, the tree that was added to longest ago goes.

    Args:
        capacity: most tokens.
        max_context: tokens of the longest context.
    """

    def __init__(self, capacity: int, max_context: int) -> None:
        self.capacity, self.max_context = capacity, max_context
        # From the one that was added to longest ago on.
        self._generations: dict[_Generation, None] = {}
        self._by_owner: dict[str, list[_Generation]] = {}

    def __len__(self) -> int:
        """Tokens, with one more for each answer."""
        return sum(len(generation.tree) for generation in self._generations)

    @property
    def nbytes(self) -> int:
        """Bytes of it all, estimated."""
        return sum(generation.tree.nbytes for generation in self._generations)

    def add(self, owner: str, text: Sequence[int]) -> None:
        """Keep an answer; of one that is longer than a part of the store, its end."""
        generation = self._growing(owner)
        generation.tree.begin()
        generation.tree.extend(text[-self._part :])
        self._generations[generation] = self._generations.pop(generation, None)
        while len(self) > self.capacity:
            self._forget(next(iter(self._generations)))

    def trees(self, owner: str) -> Iterator[ContextTree]:
        """What this owner may see, the newest first."""
        return (generation.tree for generation in reversed(self._by_owner.get(owner, [])))

    def texts(self) -> Iterator[tuple[str, array[int]]]:
        """All answers with their owners, in an order in which they can be added again."""
        return ((generation.owner, text) for generation in self._generations for text in generation.tree.texts())

    @property
    def _part(self) -> int:
        return max(self.capacity // GENERATIONS - 1, 1)

    def _growing(self, owner: str) -> _Generation:
        own = self._by_owner.setdefault(owner, [])
        if not own or len(own[-1].tree) > self._part:
            own.append(_Generation(owner, ContextTree(self.max_context)))
        return own[-1]

    def _forget(self, generation: _Generation) -> None:
        del self._generations[generation]
        own = self._by_owner[generation.owner]
        own.remove(generation)
        if not own:
            del self._by_owner[generation.owner]


def owner_of(salt: str) -> str:
    """The name under which answers of a salt are kept; it does not give the salt away."""
    return hashlib.sha256(salt.encode()).hexdigest()[:32]
