"""Blocks of 32 numbers with one float16 scale: what Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1 have in common.

The layouts are those of ggml's `ggml-common.h`.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gamaneh.models.formats.stored import Bytes, Floats, Groups, StoredTensor, check_columns

BLOCK = 32


class SmallBlocks:
    """A format of blocks of 32: scale, perhaps minimum, perhaps fifth bits, then the codes.

    Args:
        bits: of a code: 4, 5 or 8.
        zero: code of the number zero.
        minimum: a block has a float16 minimum behind its scale.
    """

    block = BLOCK

    def __init__(self, name: str, bits: int, zero: int, *, minimum: bool) -> None:
        self.name, self.bits, self.zero, self.minimum = name, bits, zero, minimum
        self.head = 4 if minimum else 2
        self.block_bytes = self.head + {4: 16, 5: 20, 8: 32}[bits]

    def row_bytes(self, columns: int) -> int:
        return check_columns(self.name, columns, BLOCK) * self.block_bytes

    def pack(self, stored: StoredTensor) -> Groups:
        rows = stored.shape[0]
        blocks = stored.raw.reshape(rows, -1, self.block_bytes)
        return Groups(
            codes=self._codes(blocks).reshape(rows, -1),
            bits=self.bits,
            zero=self.zero,
            group=BLOCK,
            scales=_half(blocks, 0),
            minima=-_half(blocks, 2) if self.minimum else None,
        )

    def expand(self, stored: StoredTensor) -> Floats:
        return self.pack(stored).expand()

    def _codes(self, blocks: Bytes) -> Bytes:
        packed = blocks[..., self.head :]
        if self.bits == 8:
            return packed ^ np.uint8(0x80)  # from -128..127 to 0..255
        nibbles = packed[..., -16:]
        codes = np.concatenate([nibbles & np.uint8(15), nibbles >> np.uint8(4)], axis=-1)
        if self.bits == 5:
            codes |= np.unpackbits(packed[..., :4], axis=-1, bitorder="little") << np.uint8(4)
        return codes


def _half(blocks: Bytes, offset: int) -> npt.NDArray[np.float16]:
    """The float16 at `offset` of each block, `[rows, blocks]`."""
    return np.ascontiguousarray(blocks[..., offset : offset + 2]).view(np.float16)[..., 0]


def write_blocks(heads: list[npt.NDArray[np.float16]], packed: Bytes) -> Bytes:
    """Return rows of blocks: float16 `[rows, blocks]` per head, then bytes `[rows, blocks, n]`."""
    parts = [np.ascontiguousarray(head)[..., None].view(np.uint8) for head in heads]
    joined = np.concatenate([*parts, packed], axis=-1)
    return joined.reshape(joined.shape[0], -1)


def whole_blocks(values: Floats) -> Floats:
    """`[rows, blocks, 32]`, filled up with zeros."""
    rows, columns = values.shape
    padded = np.zeros((rows, -(-columns // BLOCK) * BLOCK), dtype=np.float32)
    padded[:, :columns] = values
    return padded.reshape(rows, -1, BLOCK)
