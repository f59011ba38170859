"""Weights in the order in which the kernels read them: tiles of 16 outputs, records of groups one behind the other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from gamaneh.backends.compiled.jit import compiled
from gamaneh.backends.compiled.kernels import GROUP, TILE, TILES, Kind
from gamaneh.errors import CorruptModel
from gamaneh.models.formats.dense import BFLOAT16, FLOAT16, FLOAT32
from gamaneh.models.formats.stored import Bytes, Groups, StoredTensor

CHUNK_BYTES = 1 << 18
"""Codes that are laid out at once: they and their temporaries stay in the processor's cache."""

_FLOATS = (FLOAT32, BFLOAT16, FLOAT16)


@dataclass(frozen=True, slots=True, eq=False)
class Laid:
    """A matrix for the kernels.

    Args:
        shape: rows (outputs) and columns (inputs), without padding.
        tiles: uint8 `[tiles, tile_bytes]`, its first byte aligned to 64; the number of tiles is a multiple of `TILES`.
        records: records in a tile.
    """

    kind: Kind
    shape: tuple[int, int]
    tiles: Bytes
    records: int

    @property
    def nbytes(self) -> int:
        return self.tiles.nbytes


def kind_of(stored: StoredTensor) -> Kind:
    """Return the layout of a tensor's format."""
    if stored.format in _FLOATS:
        return Kind(floats=stored.format.name)
    packed = stored.rows(0, 1).pack()
    assert isinstance(packed, Groups)
    return Kind(
        bits=packed.bits,
        zero=packed.zero,
        halves=packed.group == 16,
        two_level=packed.super_scales is not None,
        signed=packed.scales.dtype == np.int8,
        minima=packed.minima is not None,
    )


def lay_out(stored: StoredTensor, pool: ThreadPoolExecutor | None = None) -> Laid:
    """Lay a matrix out, a few rows at a time.

    Raises:
        CorruptModel: a scale, or a float weight, is not finite.
    """
    kind = kind_of(stored)
    rows, columns = stored.shape
    records = -(-columns // kind.record_columns)
    num_tiles = -(-rows // (TILE * TILES)) * TILES
    tiles = aligned((num_tiles, records * kind.record_bytes), np.uint8)
    step = max(1, CHUNK_BYTES // (TILE * max(columns, 1))) * TILE

    def fill(start: int) -> None:
        part = stored.rows(start, start + step)
        into = tiles[start // TILE : -(-(start + part.shape[0]) // TILE)]
        (_fill_floats if kind.floats else _fill_groups)(part, kind, records, into)

    starts = range(0, rows, step)
    list(pool.map(fill, starts) if pool is not None else map(fill, starts))
    return Laid(kind, (rows, columns), tiles, records)


def aligned(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return zeros that start at a multiple of 64 bytes; untouched pages take no memory."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)


def _fill_floats(part: StoredTensor, kind: Kind, records: int, into: Bytes) -> None:
    if not np.isfinite(part.expand()).all():
        raise CorruptModel(f"weights must be finite numbers, got NaN or infinity as {kind.floats}")
    numbers = np.ascontiguousarray(part.raw).view(np.uint32 if kind.floats == "float32" else np.uint16)
    padded = np.zeros((into.shape[0] * TILE, records), numbers.dtype)
    padded[: numbers.shape[0]] = numbers
    into.view(numbers.dtype).reshape(-1, records, TILE)[:] = padded.reshape(-1, TILE, records).transpose(0, 2, 1)


def _fill_groups(part: StoredTensor, kind: Kind, records: int, into: Bytes) -> None:
    groups = part.pack()
    assert isinstance(groups, Groups)
    levels = [groups.scales, groups.minima, groups.super_scales, groups.super_minima]
    scales, minima, supers, lows = (_raw(level, negative=at == 3) for at, level in enumerate(levels))
    if kind.minima and not kind.two_level:
        assert groups.minima is not None
        minima = _raw(groups.minima, negative=True)
    _lay_groups(
        groups.codes,
        scales,
        minima,
        supers,
        lows,
        into,
        np.array(
            [
                kind.bits,
                records,
                kind.record_bytes,
                kind.per_record,
                2 if kind.halves else 1,
                kind.scale_bytes,
                kind.group_scale_bytes,
                kind.scales_at,
                kind.supers_at,
                kind.zero,
                GROUP,
            ],
            dtype=np.int64,
        ),
    )


def _raw(level: npt.NDArray[np.generic] | None, *, negative: bool) -> Bytes:
    """Bytes of scales, `[rows, groups, itemsize]`; minima with their sign turned, as the kernels add them."""
    if level is None:
        return np.empty((0, 0, 0), np.uint8)
    if level.dtype.kind == "f" and not np.isfinite(level).all():
        raise CorruptModel("scales of weights must be finite numbers, got NaN or infinity")
    signed = np.negative(level) if negative else level
    return np.ascontiguousarray(signed)[..., None].view(np.uint8)


_U8_2, _U8_3 = types.uint8[:, ::1], types.uint8[:, :, ::1]


@compiled(types.void(_U8_2, _U8_3, _U8_3, _U8_3, _U8_3, _U8_2, types.int64[::1]))
def _lay_groups(codes, scales, minima, supers, lows, into, plan):  # type: ignore[no-untyped-def]
    """Write whole tiles; rows and columns that the matrix lacks get codes of zero and scales of 0."""
    bits, records, record_bytes, per_record, parts = plan[0], plan[1], plan[2], plan[3], plan[4]
    scale_bytes, group_scale_bytes, scales_at, supers_at, zero, width = (
        plan[5],
        plan[6],
        plan[7],
        plan[8],
        plan[9],
        plan[10],
    )
    rows, columns = codes.shape
    four = np.empty(64, np.uint8)
    for tile in range(into.shape[0]):
        for record in range(records):
            base = record * record_bytes
            for group in range(per_record):
                g = record * per_record + group
                at = base + group * 64 * bits
                for quad in range(8):
                    first = g * width + 4 * quad
                    for o in range(16):
                        row = tile * 16 + o
                        for i in range(4):
                            inside = row < rows and first + i < columns
                            four[4 * o + i] = codes[row, first + i] if inside else zero
                    if bits == 8:
                        for lane in range(64):
                            into[tile, at + 64 * quad + lane] = four[lane]
                    else:
                        place = at + 64 * (quad // 2)
                        shift = 4 * (quad % 2)
                        for lane in range(64):
                            into[tile, place + lane] |= (four[lane] & 15) << shift
                        high = bits - 4
                        if high > 0:
                            place = at + 256 + 64 * (quad // (8 // high))
                            shift = high * (quad % (8 // high))
                            for lane in range(64):
                                into[tile, place + lane] |= (four[lane] >> 4) << shift
                size = scales.shape[2]
                at = base + scales_at + group * group_scale_bytes
                for o in range(16):
                    row = tile * 16 + o
                    for part in range(parts):
                        s = g * parts + part
                        if row < rows and s < scales.shape[1]:
                            for b in range(size):
                                into[tile, at + (part * 16 + o) * size + b] = scales[row, s, b]
                    if minima.shape[2] > 0 and row < rows and g < minima.shape[1]:
                        for b in range(size):
                            into[tile, at + scale_bytes + o * size + b] = minima[row, g, b]
            for o in range(16):
                row = tile * 16 + o
                if row < rows:
                    if supers.shape[2] > 0:
                        for b in range(2):
                            into[tile, base + supers_at + 2 * o + b] = supers[row, record, b]
                    if lows.shape[2] > 0:
                        for b in range(2):
                            into[tile, base + supers_at + 32 + 2 * o + b] = lows[row, record, b]
