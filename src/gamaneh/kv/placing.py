"""Rows of a forward with their places in a paged cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

TRASH_SLOT = 0
"""Padding rows write their keys and values here."""


@dataclass(slots=True)
class Placed:
    """Rows of one sequence in one forward, and where the cache holds what they see.

    Args:
        tokens: pending tokens, then the tokens of the draft in node order.
        start: how many tokens of the sequence are in the cache already.
        prompt_len: length of the sequence's prompt.
        slots: cache slot of every token from position 0 to `start + len(tokens)`, in order.
        first_slot: the first slot, when all slots are consecutive; else None.
        parents: parents of the draft's nodes; their number tells where the draft begins.
        logit_rows: how many of the last rows need logits.
        blocks: the blocks that hold `slots`, in order.
    """

    tokens: Sequence[int]
    start: int
    prompt_len: int
    slots: Sequence[int]
    first_slot: int | None = None
    parents: tuple[int, ...] = ()
    logit_rows: int = 1
    blocks: Sequence[int] = ()

    @property
    def num_pending(self) -> int:
        return len(self.tokens) - len(self.parents)

    @property
    def num_prompt_rows(self) -> int:
        return max(0, min(self.prompt_len - self.start, self.num_pending))

    @property
    def is_chain(self) -> bool:
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    def positions(self) -> list[int]:
        """Absolute position of each row; a draft node stands at its depth below the last pending token."""
        positions = list(range(self.start, self.start + self.num_pending))
        base, first = positions[-1], len(positions)
        for parent in self.parents:
            positions.append(base + 1 if parent < 0 else positions[first + parent] + 1)
        return positions
