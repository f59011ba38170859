"""The blocks of one sequence."""

from __future__ import annotations

from itertools import pairwise

from gamaneh.kv.pool import BlockPool


class BlockTable:
    """Maps the positions of one sequence to slots of the cache.

    `length` counts the tokens whose keys and values are committed; the blocks may reach further
    (a reservation). Writing happens at positions from `length` on only, and only full blocks are
    ever shared, so a shared block is never written.
    """

    def __init__(self, pool: BlockPool) -> None:
        self.blocks: list[int] = []
        self.length = 0
        self._pool = pool
        self._gaps = 0  # neighbours in `blocks` whose ids are not consecutive

    @property
    def capacity(self) -> int:
        """Tokens that fit into the blocks at hand."""
        return len(self.blocks) * self._pool.block_size

    def adopt(self, block: int) -> None:
        """Share a full block as the next one of a table without a reservation."""
        assert self.length == self.capacity, f"block {block} adopted behind {self.length} of {self.capacity} tokens"
        self._pool.share(block)
        self._append(block)
        self.length = self.capacity

    def reserve(self, extra: int) -> None:
        """Make room for `extra` tokens behind the committed ones.

        Raises:
            OutOfMemory: the pool is short of blocks; nothing has changed.
        """
        missing = self._blocks_for(self.length + extra) - len(self.blocks)
        if missing <= 0:
            return
        for block in self._pool.allocate(missing, after=self.blocks[-1] if self.blocks else None):
            self._append(block)

    def slots(self, start: int, stop: int) -> list[int]:
        """Slot ids of positions `start` to `stop`, which must be reserved."""
        if not 0 <= start <= stop <= self.capacity:
            raise ValueError(f"slots must lie within the {self.capacity} reserved positions, got {start} to {stop}")
        size = self._pool.block_size
        slots: list[int] = []
        while start < stop:
            index, offset = divmod(start, size)
            count = min(size - offset, stop - start)
            first = self.blocks[index] * size + offset
            slots.extend(range(first, first + count))
            start += count
        return slots

    def run(self) -> int | None:
        """First slot if the blocks are consecutive, so that position i is slot run + i; else None."""
        return self.blocks[0] * self._pool.block_size if self.blocks and self._gaps == 0 else None

    def commit(self, count: int) -> None:
        """Count `count` more tokens as committed and give the rest of the reservation back."""
        if not 0 <= count <= self.capacity - self.length:
            raise ValueError(f"commit must stay within {self.capacity - self.length} reserved positions, got {count}")
        self.length += count
        self._shrink()

    def truncate(self, length: int) -> int:
        """Forget the tokens from `length` on and return the new length.

        It is lower than asked, at a block border, when the block in which `length` falls is shared:
        that block is given back, since what follows would have to be written into it.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"length must be at most the {self.length} committed tokens, got {length}")
        self.length = length
        self._shrink()
        if self.length < self.capacity and not self._pool.claim(self.blocks[-1]):
            self.length = self.capacity - self._pool.block_size
            self._shrink()
        return self.length

    def free(self) -> None:
        """Give everything back, last block first: a prefix outlives what builds on it."""
        self.length = 0
        self._shrink()

    def check_integrity(self) -> None:
        """Raise AssertionError when blocks, length and gaps do not agree."""
        assert 0 <= self.length <= self.capacity, f"{self.length} tokens in {len(self.blocks)} blocks"
        assert len(set(self.blocks)) == len(self.blocks), f"a block occurs twice in {self.blocks}"
        gaps = sum(after != before + 1 for before, after in pairwise(self.blocks))
        assert gaps == self._gaps, f"{gaps} gaps between blocks, but {self._gaps} in the books"

    def _blocks_for(self, length: int) -> int:
        return -(-length // self._pool.block_size)

    def _append(self, block: int) -> None:
        self._gaps += bool(self.blocks) and block != self.blocks[-1] + 1
        self.blocks.append(block)

    def _shrink(self) -> None:
        keep = self._blocks_for(self.length)
        while len(self.blocks) > keep:
            block = self.blocks.pop()
            self._gaps -= bool(self.blocks) and block != self.blocks[-1] + 1
            self._pool.release(block)
