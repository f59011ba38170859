"""The tensors that hold keys and values."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

from gamaneh.errors import OutOfMemory
from gamaneh.machine_limits import total_memory


class KVCache:
    """Keys and values of all layers, `[num_layers, num_slots, num_kv_heads, head_dim]` each.

    Slot `block * block_size + offset` belongs to `offset` in `block`. Block 0, the trash block of
    the padding rows, comes on top of `num_blocks`. Everything is zero at first, so that masked
    slots hold finite numbers.

    Raises:
        OutOfMemory: the machine cannot hold the tensors.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        shape = (num_layers, (num_blocks + 1) * block_size, num_kv_heads, head_dim)
        try:
            self.keys = _zeros(shape, dtype, torch.device(device))
            self.values = _zeros(shape, dtype, torch.device(device))
        except (RuntimeError, OSError, ValueError, OverflowError) as error:
            needed = (num_blocks + 1) * bytes_per_block(num_layers, block_size, num_kv_heads, head_dim, dtype)
            raise OutOfMemory(f"KV cache must fit into the memory of {device}, needs {needed} bytes") from error

    @property
    def num_layers(self) -> int:
        return self.keys.shape[0]

    @property
    def num_slots(self) -> int:
        """Slots of all blocks, those of the trash block included."""
        return self.keys.shape[1]

    @property
    def nbytes(self) -> int:
        """Bytes of both tensors. On a CPU, slots that were never touched take no memory yet."""
        return self.keys.nbytes + self.values.nbytes

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, `[num_slots, num_kv_heads, head_dim]` each, to read and write."""
        return self.keys[index], self.values[index]

    def move(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy slots to other slots in all layers at once; the two may overlap."""
        if not source:
            return
        sources = torch.tensor(source, device=self.keys.device)
        targets = torch.tensor(target, device=self.keys.device)
        for tensor in (self.keys, self.values):
            tensor.index_copy_(1, targets, tensor.index_select(1, sources))


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that take memory only where they are written, on a CPU: `torch.zeros` writes every page."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    if size > total_memory():
        raise ValueError(f"{size} bytes are more than this machine has")
    pages = mmap.mmap(-1, size)
    return torch.frombuffer(pages, dtype=dtype).view(shape)


def bytes_per_block(num_layers: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """Bytes of the keys and values of one block in all layers."""
    return 2 * num_layers * block_size * num_kv_heads * head_dim * dtype.itemsize
