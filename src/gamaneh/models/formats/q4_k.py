"""GGUF's Q4_K: super-blocks of 256; groups of 32 with 4-bit codes, 6-bit scales and 6-bit minima."""

from __future__ import annotations

from gamaneh.models.formats.stored import Floats, Groups, StoredTensor, check_columns
from gamaneh.models.formats.super_blocks import SUPER, half, nibble_pairs, six_bit_scales


class Q4KFormat:
    """Bytes of a super-block: d, dmin (float16), 12 of scales and minima, 128 of codes."""

    name = "Q4_K"
    block = SUPER

    def row_bytes(self, columns: int) -> int:
        return check_columns(self.name, columns, SUPER) * 144

    def pack(self, stored: StoredTensor) -> Groups:
        rows = stored.shape[0]
        blocks = stored.raw.reshape(rows, -1, 144)
        scales, minima = six_bit_scales(blocks[..., 4:16])
        return Groups(
            codes=nibble_pairs(blocks[..., 16:]).reshape(rows, -1),
            bits=4,
            zero=0,
            group=32,
            scales=scales,
            minima=minima,
            super_scales=half(blocks, 0),
            super_minima=half(blocks, 2),
        )

    def expand(self, stored: StoredTensor) -> Floats:
        return self.pack(stored).expand()


Q4_K = Q4KFormat()
