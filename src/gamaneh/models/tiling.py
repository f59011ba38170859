"""Shape-invariant execution: in which pieces rows are computed, so that their bits stay the same."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tiling:
    """Rows per matrix product and per attention query tile; 0 puts all rows in one.

    Args:
        quantum: generated rows are padded to a multiple of this.
        generated: most generated rows in one matrix product; a multiple of `quantum`.
        prompt: prompt rows in one matrix product, always exactly this many.
        queries: most generated rows in one attention tile.
    """

    quantum: int = 0
    generated: int = 0
    prompt: int = 0
    queries: int = 0

    @property
    def invariant(self) -> bool:
        return self.quantum > 0

    def padded(self, rows: int) -> int:
        """Generated rows, padding included."""
        return round_up(rows, self.quantum)

    def splits(self, generated: int, prompt: int) -> list[int]:
        """Rows of each matrix product, both lanes padded already."""
        if not self.invariant:
            return [generated + prompt]
        return [*_chunks(generated, self.generated), *_chunks(prompt, self.prompt)]


FREE = Tiling()
"""No tiles: the fastest shapes, and bits that depend on the batch."""


def round_up(count: int, multiple: int) -> int:
    """The next multiple; 0 rounds nothing."""
    return count if multiple == 0 else -(-count // multiple) * multiple


def _chunks(count: int, size: int) -> list[int]:
    return [min(size, count - done) for done in range(0, count, size)]
