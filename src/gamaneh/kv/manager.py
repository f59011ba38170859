"""The KV cache manager: one for the target, one of the same class for each model that drafts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from gamaneh.errors import OutOfMemory
from gamaneh.kv.pool import BlockPool
from gamaneh.kv.prefix_tree import PrefixCursor
from gamaneh.kv.table import BlockTable


@dataclass(frozen=True, slots=True)
class KVStats:
    """Counts since the start.

    Args:
        admitted: sequences that came in.
        hits: those of them that found a prefix to reuse.
        hit_tokens: tokens that need not be computed again.
        evictions: reusable blocks that had to make room.
    """

    admitted: int
    hits: int
    hit_tokens: int
    evictions: int


class SlotStore(Protocol):
    """The tensors of a cache, as far as the manager touches them."""

    @property
    def nbytes(self) -> int: ...

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy slots to other slots in all layers at once; the two may overlap."""
        ...


@dataclass(frozen=True, slots=True)
class _Sequence:
    table: BlockTable
    cursor: PrefixCursor


class KVManager:
    """Gives sequences room in the cache and keeps what is worth reusing.

    The life of a sequence: `admit`, then for each forward `reserve`, `slots`, `commit`, and `free`
    at the end, from whatever state.

    Args:
        pool: the blocks.
        cache: the tensors, needed to compact accepted paths of trees; None leaves them alone.
    """

    def __init__(self, pool: BlockPool, cache: SlotStore | None = None) -> None:
        self.pool = pool
        self.cache = cache
        self._sequences: dict[str, _Sequence] = {}
        self._admitted = 0
        self._hits = 0
        self._hit_tokens = 0

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._sequences

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def stats(self) -> KVStats:
        return KVStats(self._admitted, self._hits, self._hit_tokens, self.pool.evictions)

    def table(self, request_id: str) -> BlockTable:
        """The blocks of one sequence, to read."""
        return self._sequences[request_id].table

    def length(self, request_id: str) -> int:
        """Tokens of the sequence whose keys and values are committed."""
        return self.table(request_id).length

    def admit(self, request_id: str, tokens: Sequence[int], prompt_len: int = 0, salt: str = "") -> int:
        """Take a sequence in and return how many of its tokens are cached already.

        Only full blocks are reused, and never all tokens: at least one remains to be fed.

        Args:
            request_id: a name that is not in use.
            tokens: the prompt, or prompt and emitted tokens when a sequence comes back.
            prompt_len: prompt tokens among them, where prompt rows and generated rows are computed
                in different tiles and must not stand in for each other; 0 ignores the difference.
            salt: sequences with different salts share nothing.
        """
        if request_id in self._sequences:
            raise ValueError(f"request_id must not be in use, got {request_id!r}")
        cursor = PrefixCursor(self.pool.prefixes, self.pool.block_size, prompt_len, salt)
        sequence = self._sequences[request_id] = _Sequence(BlockTable(self.pool), cursor)
        self._reuse(sequence, tokens)
        cached = sequence.table.length
        self._admitted += 1
        self._hits += cached > 0
        self._hit_tokens += cached
        return cached

    def reserve(self, request_id: str, extra: int) -> bool:
        """Make room for `extra` tokens behind the committed ones; False, and no change, when short."""
        try:
            self.table(request_id).reserve(extra)
        except OutOfMemory:
            return False
        return True

    def slots(self, request_id: str, start: int, stop: int) -> list[int]:
        """Slot ids of positions `start` to `stop`, which must be reserved."""
        return self.table(request_id).slots(start, stop)

    def commit(self, request_id: str, tokens: Sequence[int], keep: int, path: Sequence[int] = ()) -> None:
        """Keep some of the rows that a forward wrote behind the committed tokens; the rest is given back.

        Args:
            request_id: the sequence.
            tokens: its tokens from position 0 on, at least up to the new length.
            keep: the first rows, which fed pending tokens.
            path: accepted nodes of the draft in ascending order; node i was fed in row `keep` + i.
                Those of a tree are moved together.
        """
        sequence = self._sequences[request_id]
        table = sequence.table
        length = table.length + keep + len(path)
        if len(tokens) < length:
            raise ValueError(f"tokens must reach the new length {length}, got {len(tokens)}")
        self._compact(table, table.length + keep, path)
        table.commit(keep + len(path))
        self._publish(sequence, tokens)

    def truncate(self, request_id: str, length: int) -> int:
        """Forget the tokens from `length` on and return the new length.

        It is lower than asked, at a block border, when `length` falls into a block that other
        sequences share: the tokens between are pending again.
        """
        sequence = self._sequences[request_id]
        sequence.cursor.rewind(length // self.pool.block_size)
        return sequence.table.truncate(length)

    def withdraw(self, request_id: str) -> None:
        """Offer nothing of this sequence for reuse any more, before it is freed."""
        sequence = self._sequences[request_id]
        sequence.cursor.rewind(0)
        for block in reversed(sequence.table.blocks):
            self.pool.withdraw(block)

    def free(self, request_id: str) -> None:
        """Let a sequence go with all it holds. What it published stays reusable."""
        sequence = self._sequences.pop(request_id)
        sequence.cursor.close()
        sequence.table.free()

    def check_integrity(self) -> None:
        """Raise AssertionError when pool, tables and cursors do not agree, O(num_blocks)."""
        self.pool.check_integrity()
        for request_id, sequence in self._sequences.items():
            sequence.table.check_integrity()
            full = sequence.table.length // self.pool.block_size
            depth = sequence.cursor.depth
            assert depth == (full if self.pool.prefix_cache else 0), f"{request_id}: {depth} of {full} blocks published"
        self._check_holders()
        self._check_pins()

    def _reuse(self, sequence: _Sequence, tokens: Sequence[int]) -> None:
        for _ in range((len(tokens) - 1) // self.pool.block_size):
            node = sequence.cursor.peek(tokens)
            if node is None or node.block is None:
                return
            sequence.cursor.advance(tokens)
            sequence.table.adopt(node.block)

    def _publish(self, sequence: _Sequence, tokens: Sequence[int]) -> None:
        if not self.pool.prefix_cache:
            return
        table, cursor = sequence.table, sequence.cursor
        for block in table.blocks[cursor.depth : table.length // self.pool.block_size]:
            self.pool.publish(block, cursor.advance(tokens))

    def _compact(self, table: BlockTable, start: int, path: Sequence[int]) -> None:
        moved = [(node, row) for row, node in enumerate(path) if node != row]
        if not moved or self.cache is None:
            return
        rows = table.slots(start, start + path[-1] + 1)
        self.cache.move([rows[node] for node, _ in moved], [rows[row] for _, row in moved])

    def _check_holders(self) -> None:
        held = Counter(block for sequence in self._sequences.values() for block in sequence.table.blocks)
        for block in range(self.pool.num_blocks + 1):
            holders = self.pool.holders(block)
            assert holders == held[block], f"block {block} has {holders} holders, but {held[block]} tables hold it"

    def _check_pins(self) -> None:
        pins = Counter(id(sequence.cursor.node) for sequence in self._sequences.values())
        for node in self.pool.prefixes.nodes():
            assert node.pins == pins[id(node)], f"prefix node {node.edge!r} has {node.pins} pins, not {pins[id(node)]}"
