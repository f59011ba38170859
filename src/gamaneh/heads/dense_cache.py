"""Keys and values of one layer for several requests, each in a row of its own."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import torch
from torch import Tensor

from gamaneh.kv.cache import KVCache

INITIAL_CAPACITY = 256


class DenseCache:
    """A table of `capacity` places per request, so that the keys of a request are a view and never gathered.

    It doubles as needed, in requests and in capacity. On a CPU, places that were never written take no memory.

    Raises:
        OutOfMemory: from any method that makes it grow.
    """

    def __init__(self, num_kv_heads: int, head_dim: int, dtype: torch.dtype, device: torch.device) -> None:
        self._kind = (num_kv_heads, head_dim, dtype, device)
        self.capacity = INITIAL_CAPACITY
        self._kv = self._make(2)
        self._free = [0, 1]

    @property
    def nbytes(self) -> int:
        """Bytes of both tensors."""
        return self._kv.nbytes

    @property
    def num_rows(self) -> int:
        """Requests that there is room for."""
        return self._kv.num_blocks + 1

    def take(self) -> int:
        """A row for one more request: the lowest free one, so that the rows in use are neighbours."""
        if not self._free:
            rows = self.num_rows
            self._grow(2 * rows, self.capacity)
            self._free = list(range(rows, 2 * rows))
        return heapq.heappop(self._free)

    def give_back(self, row: int) -> None:
        """The request of this row is gone."""
        heapq.heappush(self._free, row)

    def fit(self, length: int) -> None:
        """Make room for `length` places per request."""
        capacity = self.capacity
        while capacity < length:
            capacity *= 2
        if capacity > self.capacity:
            self._grow(self.num_rows, capacity)

    def write(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store `[num_slots, num_kv_heads, head_dim]` at `row * capacity + place`."""
        for cache, new in zip(self._kv.layer(0), (keys, values), strict=True):
            cache.index_copy_(0, slots, new)

    def read(self, rows: Sequence[int], length: int) -> tuple[Tensor, Tensor]:
        """Keys and values of these rows, `[num_rows, num_kv_heads, length, head_dim]`; views of neighbours."""
        first, count = rows[0], len(rows)
        neighbours = all(row == first + at for at, row in enumerate(rows))
        picked = slice(first, first + count) if neighbours else list(rows)
        keys, values = (table[picked, :length].transpose(1, 2) for table in self._tables(self._kv, self.capacity))
        return keys, values

    def _make(self, rows: int) -> KVCache:
        num_kv_heads, head_dim, dtype, device = self._kind
        return KVCache(1, rows - 1, self.capacity, num_kv_heads, head_dim, dtype, device)

    def _grow(self, rows: int, capacity: int) -> None:
        old_tables, old_rows, old_capacity = self._tables(self._kv, self.capacity), self.num_rows, self.capacity
        self.capacity = capacity
        self._kv = self._make(rows)
        for old, new in zip(old_tables, self._tables(self._kv, capacity), strict=True):
            new[:old_rows, :old_capacity] = old

    def _tables(self, kv: KVCache, capacity: int) -> list[Tensor]:
        return [part.view(-1, capacity, *part.shape[1:]) for part in kv.layer(0)]
