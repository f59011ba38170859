"""Our int4: groups of 32 with a scale and a minimum, searched for the least error. The bytes are those of Q4_1."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gamaneh.models.formats.small_blocks import BLOCK, SmallBlocks, whole_blocks, write_blocks
from gamaneh.models.formats.stored import Bytes, Floats, StoredTensor

LEVELS = 15
TRIALS = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8)
"""Shares of a group's range that are tried: cutting the ends off often makes the squared error smaller."""


class Int4Format(SmallBlocks):
    """Rows of any length; the last group is filled up with zeros."""

    def __init__(self) -> None:
        super().__init__("int4", bits=4, zero=0, minimum=True)

    def row_bytes(self, columns: int) -> int:
        return -(-columns // BLOCK) * self.block_bytes

    def expand(self, stored: StoredTensor) -> Floats:
        return super().expand(stored)[:, : stored.shape[1]]

    def quantise(self, values: Floats) -> StoredTensor:
        """Return the numbers `[rows, columns]`, rounded to 16 levels per group."""
        blocks = whole_blocks(values)
        scales, lows = _search(blocks)
        codes = _codes(blocks, scales, lows)
        packed = codes[..., :16] | (codes[..., 16:] << np.uint8(4))
        rows, columns = values.shape
        return StoredTensor(self, (rows, columns), write_blocks([scales, lows], packed))


def _search(blocks: Floats) -> tuple[npt.NDArray[np.float16], npt.NDArray[np.float16]]:
    """Scale and lowest value of each group: ranges are tried, then fitted to the codes by least squares."""
    low, high = blocks.min(axis=-1), blocks.max(axis=-1)
    best_scale, best_low = ((high - low) / LEVELS).astype(np.float16), low.astype(np.float16)
    least = _error(blocks, best_scale, best_low)
    middle, reach = (low + high) / 2, (high - low) / 2
    for share in TRIALS:
        scale = (2 * share * reach / LEVELS).astype(np.float16)
        start = (middle - share * reach).astype(np.float16)
        for candidate in ((scale, start), _fitted(blocks, _codes(blocks, scale, start))):
            error = _error(blocks, *candidate)
            better = error < least
            best_scale = np.where(better, candidate[0], best_scale)
            best_low = np.where(better, candidate[1], best_low)
            least = np.minimum(error, least)
    return best_scale, best_low


def _fitted(blocks: Floats, codes: Bytes) -> tuple[npt.NDArray[np.float16], npt.NDArray[np.float16]]:
    """Least squares of values against codes, group by group."""
    x = codes.astype(np.float32)
    mean_x, mean_y = x.mean(axis=-1, keepdims=True), blocks.mean(axis=-1, keepdims=True)
    spread = ((x - mean_x) ** 2).sum(axis=-1)
    slope = ((x - mean_x) * (blocks - mean_y)).sum(axis=-1)
    slope = np.maximum(np.divide(slope, spread, out=np.zeros_like(slope), where=spread > 0), 0)
    return slope.astype(np.float16), (mean_y[..., 0] - slope * mean_x[..., 0]).astype(np.float16)


def _codes(blocks: Floats, scales: npt.NDArray[np.float16], lows: npt.NDArray[np.float16]) -> Bytes:
    wide = scales.astype(np.float32)[..., None]
    inverse = np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=wide > 0)
    steps = np.rint((blocks - lows.astype(np.float32)[..., None]) * inverse)
    codes: Bytes = np.clip(steps, 0, LEVELS).astype(np.uint8)
    return codes


def _error(blocks: Floats, scales: npt.NDArray[np.float16], lows: npt.NDArray[np.float16]) -> Floats:
    codes = _codes(blocks, scales, lows).astype(np.float32)
    values = codes * scales.astype(np.float32)[..., None] + lows.astype(np.float32)[..., None]
    error: Floats = ((values - blocks) ** 2).sum(axis=-1)
    return error


INT4 = Int4Format()
