"""GGUF's Q5_K: super-blocks of 256; groups of 32 with 5-bit codes, 6-bit scales and 6-bit minima."""

from __future__ import annotations

import numpy as np

from gamaneh.models.formats.stored import Floats, Groups, StoredTensor, check_columns
from gamaneh.models.formats.super_blocks import SUPER, half, nibble_pairs, six_bit_scales


class Q5KFormat:
    """Bytes of a super-block: d, dmin (float16), 12 of scales and minima, 32 of fifth bits, 128 of nibbles."""

    name = "Q5_K"
    block = SUPER

    def row_bytes(self, columns: int) -> int:
        return check_columns(self.name, columns, SUPER) * 176

    def pack(self, stored: StoredTensor) -> Groups:
        rows = stored.shape[0]
        blocks = stored.raw.reshape(rows, -1, 176)
        scales, minima = six_bit_scales(blocks[..., 4:16])
        codes = nibble_pairs(blocks[..., 48:])
        # Bit g of byte i is the fifth bit of number i of group g.
        shifts = np.arange(8, dtype=np.uint8)[:, None]
        codes |= ((blocks[..., None, 16:48] >> shifts) & np.uint8(1)) << np.uint8(4)
        return Groups(
            codes=codes.reshape(rows, -1),
            bits=5,
            zero=0,
            group=32,
            scales=scales,
            minima=minima,
            super_scales=half(blocks, 0),
            super_minima=half(blocks, 2),
        )

    def expand(self, stored: StoredTensor) -> Floats:
        return self.pack(stored).expand()


Q5_K = Q5KFormat()
