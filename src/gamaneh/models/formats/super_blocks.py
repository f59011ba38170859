"""Super-blocks of 256 numbers: what Q4_K and Q5_K have in common. The layouts are those of ggml's `ggml-common.h`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gamaneh.models.formats.stored import Bytes

SUPER = 256


def half(blocks: Bytes, offset: int) -> npt.NDArray[np.float16]:
    """The float16 at `offset` of each super-block, `[rows, supers]`."""
    return np.ascontiguousarray(blocks[..., offset : offset + 2]).view(np.float16)[..., 0]


def six_bit_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Twelve bytes `[rows, supers, 12]` -> eight scales and eight minima of 6 bits, `[rows, supers * 8]` each."""
    first, second, third = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    low, high, top = np.uint8(0x0F), np.uint8(63), np.uint8(0x30)
    scales = np.concatenate([first & high, (third & low) | ((first >> np.uint8(2)) & top)], axis=-1)
    minima = np.concatenate([second & high, (third >> np.uint8(4)) | ((second >> np.uint8(2)) & top)], axis=-1)
    rows = packed.shape[0]
    return scales.reshape(rows, -1), minima.reshape(rows, -1)


def nibble_pairs(packed: Bytes) -> Bytes:
    """`[rows, supers, 128]` -> `[rows, supers, 8, 32]`: 32 bytes hold one group low and the next one high."""
    pairs = packed.reshape(*packed.shape[:-1], 4, 1, 32)
    return (np.concatenate([pairs & np.uint8(15), pairs >> np.uint8(4)], axis=-2)).reshape(*packed.shape[:-1], 8, 32)
