"""Our int8: symmetric groups of 32 with a float16 scale. The bytes are those of Q8_0."""

from __future__ import annotations

import numpy as np

from gamaneh.models.formats.small_blocks import BLOCK, SmallBlocks, whole_blocks, write_blocks
from gamaneh.models.formats.stored import Floats, StoredTensor


class Int8Format(SmallBlocks):
    """Rows of any length; the last group is filled up with zeros."""

    def __init__(self) -> None:
        super().__init__("int8", bits=8, zero=128, minimum=False)

    def row_bytes(self, columns: int) -> int:
        return -(-columns // BLOCK) * self.block_bytes

    def expand(self, stored: StoredTensor) -> Floats:
        return super().expand(stored)[:, : stored.shape[1]]

    def quantise(self, values: Floats) -> StoredTensor:
        """Return the numbers `[rows, columns]`, rounded to 255 levels per group."""
        blocks = whole_blocks(values)
        scales = (np.abs(blocks).max(axis=-1) / np.float32(127)).astype(np.float16)
        wide = scales.astype(np.float32)[..., None]
        inverse = np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=wide > 0)
        codes = np.clip(np.rint(blocks * inverse), -127, 127).astype(np.int8)
        rows, columns = values.shape
        return StoredTensor(self, (rows, columns), write_blocks([scales], codes.view(np.uint8)))


INT8 = Int8Format()
