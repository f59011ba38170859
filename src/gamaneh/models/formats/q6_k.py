"""GGUF's Q6_K: super-blocks of 256; groups of 16 with 6-bit codes around 32 and signed 8-bit scales."""

from __future__ import annotations

import numpy as np

from gamaneh.models.formats.stored import Floats, Groups, StoredTensor, check_columns
from gamaneh.models.formats.super_blocks import SUPER, half


class Q6KFormat:
    """Bytes of a super-block: 128 of low nibbles, 64 of high bits, 16 scales, d (float16)."""

    name = "Q6_K"
    block = SUPER

    def row_bytes(self, columns: int) -> int:
        return check_columns(self.name, columns, SUPER) * 210

    def pack(self, stored: StoredTensor) -> Groups:
        rows = stored.shape[0]
        blocks = stored.raw.reshape(rows, -1, 210)
        supers = blocks.shape[1]
        # Each half of 128 numbers: 64 bytes hold numbers 0..63 low and 64..127 high; 32 bytes hold their high bits.
        nibbles = blocks[..., :128].reshape(rows, supers, 2, 1, 64)
        low = np.concatenate([nibbles & np.uint8(15), nibbles >> np.uint8(4)], axis=3).reshape(rows, supers, 2, 4, 32)
        shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
        high = (blocks[..., 128:192].reshape(rows, supers, 2, 1, 32) >> shifts) & np.uint8(3)
        return Groups(
            codes=(low | (high << np.uint8(4))).reshape(rows, -1),
            bits=6,
            zero=32,
            group=16,
            scales=np.ascontiguousarray(blocks[..., 192:208]).view(np.int8).reshape(rows, -1),
            super_scales=half(blocks, 208),
        )

    def expand(self, stored: StoredTensor) -> Floats:
        return self.pack(stored).expand()


Q6_K = Q6KFormat()
