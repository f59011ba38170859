"""Keys and values of the compiled backend, as float16."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gamaneh.backends.compiled.layout import aligned
from gamaneh.backends.compiled.vectors import BLOCK
from gamaneh.errors import OutOfMemory
from gamaneh.machine_limits import total_memory

_LANES = 16


class Pages:
    """The cache's arrays: the block manager says which block belongs to whom.

    Keys lie side by side, `[num_layers, num_blocks + 1, num_kv_heads, head_dim, 16]`, so that one vector holds the
    scores of 16 positions; values as `[num_layers, num_blocks + 1, num_kv_heads, 16, value_dim]`, with `head_dim`
    rounded up to whole vectors. Slot `16 * block + lane` is one position. Untouched blocks take no memory.

    Raises:
        OutOfMemory: they are larger than the machine's memory.
    """

    def __init__(self, num_layers: int, num_blocks: int, num_kv_heads: int, head_dim: int) -> None:
        self.num_blocks, self.block_size = num_blocks, BLOCK
        self.value_dim = -(-head_dim // _LANES) * _LANES
        needed = (num_blocks + 1) * bytes_per_block(num_layers, num_kv_heads, head_dim)
        if needed > total_memory():
            raise OutOfMemory(f"KV cache must fit into the memory of this machine, needs {needed} bytes")
        blocks = num_blocks + 1
        self.keys: npt.NDArray[np.generic] = aligned((num_layers, blocks, num_kv_heads, head_dim, BLOCK), np.float16)
        self.values: npt.NDArray[np.generic] = aligned(
            (num_layers, blocks, num_kv_heads, BLOCK, self.value_dim), np.float16
        )

    @property
    def nbytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    @property
    def num_slots(self) -> int:
        return (self.num_blocks + 1) * BLOCK

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy slots to other slots in all layers at once; the two may overlap."""
        if not source:
            return
        from_block, from_lane = np.divmod(np.asarray(source), BLOCK)
        to_block, to_lane = np.divmod(np.asarray(target), BLOCK)
        self.keys[:, to_block, :, :, to_lane] = self.keys[:, from_block, :, :, from_lane]
        self.values[:, to_block, :, to_lane] = self.values[:, from_block, :, from_lane]


def bytes_per_block(num_layers: int, num_kv_heads: int, head_dim: int) -> int:
    """Return the bytes of one block's keys and values in all layers."""
    value_dim = -(-head_dim // _LANES) * _LANES
    return num_layers * num_kv_heads * BLOCK * (head_dim + value_dim) * 2
