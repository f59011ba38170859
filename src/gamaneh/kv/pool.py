"""Reference-counted blocks of the KV cache, and which of them can be reused for equal prefixes."""

from __future__ import annotations

from gamaneh.errors import OutOfMemory
from gamaneh.kv.extents import FreeExtents
from gamaneh.kv.prefix_tree import PrefixNode, PrefixTree

TRASH_BLOCK = 0
"""Padding rows write to and read from the slots of this block; it is never handed out."""

_EVICTION_SHARE = 64
"""One eviction frees up to 1/64 of the pool, so that single blocks are not picked from all over it."""


class BlockPool:
    """Owns the blocks 1..num_blocks of one KV cache.

    A block is either *in use* (one holder or more), *evictable* (no holder, but published under a
    prefix, so that a later sequence may share it) or *free*.

    Args:
        num_blocks: blocks that can be handed out; block 0 comes on top.
        block_size: tokens in one block.
        prefix_cache: keep published blocks after their last holder let go.
    """

    def __init__(self, num_blocks: int, block_size: int, prefix_cache: bool = True) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"num_blocks and block_size must be at least 1, got {num_blocks} and {block_size}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.prefix_cache = prefix_cache
        self.prefixes = PrefixTree()
        self.evictions = 0
        self._free = FreeExtents(TRASH_BLOCK + 1, num_blocks)
        self._holders = [0] * (num_blocks + 1)
        self._published: dict[int, PrefixNode] = {}
        self._evictable: dict[int, None] = {}  # least recently used first

    @property
    def available(self) -> int:
        """Blocks that `allocate` can hand out: free and evictable ones."""
        return len(self._free) + len(self._evictable)

    @property
    def in_use(self) -> int:
        return self.num_blocks - self.available

    @property
    def evictable(self) -> int:
        """Blocks without a holder that are kept for reuse."""
        return len(self._evictable)

    def holders(self, block: int) -> int:
        return self._holders[block]

    def allocate(self, count: int, after: int | None = None) -> list[int]:
        """Hand out `count` blocks with one holder each, all or none, in O(count).

        Args:
            count: how many.
            after: block that the new ones should follow: attention reads consecutive blocks as one
                slice, without a copy.

        Raises:
            OutOfMemory: fewer than `count` blocks are available; nothing has changed.
        """
        if count > self.available:
            raise OutOfMemory(f"KV blocks must be available to be allocated: {count} asked, {self.available} available")
        self._make_room(count)
        blocks = self._free.take(count, after)
        for block in blocks:
            self._holders[block] = 1
        return blocks

    def share(self, block: int) -> None:
        """Add a holder to a block that is in use or evictable."""
        if self._holders[block] == 0:
            del self._evictable[block]
        self._holders[block] += 1

    def release(self, block: int) -> None:
        """Take one holder away; without one the block becomes evictable if published, else free."""
        assert self._holders[block] > 0, f"block {block} is released but has no holder"
        self._holders[block] -= 1
        if self._holders[block] > 0:
            return
        if block in self._published:
            self._evictable[block] = None
        else:
            self._free.add(block)

    def publish(self, block: int, node: PrefixNode) -> bool:
        """Offer a full block in use for reuse under `node`.

        False when another block is offered there already, or without a prefix cache.
        """
        if not self.prefix_cache or node.block is not None:
            return False
        node.block = block
        self._published[block] = node
        return True

    def claim(self, block: int) -> bool:
        """Make a block safe to overwrite by its one holder: it is no longer offered for reuse.

        False when it has other holders; then nothing has changed.
        """
        if self._holders[block] > 1:
            return False
        if block in self._published:
            self._withdraw(block)
        return True

    def withdraw(self, block: int) -> None:
        """Offer this block for reuse no more, whoever holds it."""
        if block in self._published:
            self._withdraw(block)

    def check_integrity(self) -> None:
        """Raise AssertionError when the books do not agree, O(num_blocks)."""
        self._free.check_integrity()
        self._check_states()
        for block, node in self._published.items():
            assert node.block == block, f"block {block} is published under a node that holds {node.block}"
        self._check_tree()

    def _make_room(self, count: int) -> None:
        short = count - len(self._free)
        if short <= 0:
            return
        for _ in range(min(max(short, self.num_blocks // _EVICTION_SHARE), len(self._evictable))):
            self._evict(next(iter(self._evictable)))

    def _evict(self, block: int) -> None:
        del self._evictable[block]
        self._withdraw(block)
        self._free.add(block)
        self.evictions += 1

    def _withdraw(self, block: int) -> None:
        node = self._published.pop(block)
        node.block = None
        self.prefixes.prune(node)

    def _check_states(self) -> None:
        free = [block for start, length in self._free.runs() for block in range(start, start + length)]
        in_use = [block for block, holders in enumerate(self._holders) if holders]
        states = sorted([*free, *self._evictable, *in_use])
        expected = list(range(TRASH_BLOCK + 1, self.num_blocks + 1))
        assert states == expected, "a block is lost, or is free, evictable and in use at once"
        assert self._evictable.keys() <= self._published.keys(), "an evictable block is not published"
        assert not self._published.keys() & set(free), "a free block is published"

    def _check_tree(self) -> None:
        blocks = set()
        for node in self.prefixes.nodes():
            assert not node.unused, f"prefix node {node.edge!r} is kept for nothing"
            if node.block is not None:
                blocks.add(node.block)
        assert blocks == self._published.keys(), "a published block cannot be found by its prefix"
