"""Weights in the order in which the kernels read them: tiles of 16 outputs, records of groups one behind the other."""

from __future__ import annotations

import mmap
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

LARGE = 1 << 20
"""Bytes from which on an array gets pages of its own."""

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
    tiles = aligned((num_tiles, records * kind.record_bytes), np.uint8, huge=True)
    step = _chunk_rows(columns)

    def fill(start: int) -> None:
        part = stored.rows(start, start + step)
        into = tiles[start // TILE : -(-(start + part.shape[0]) // TILE)]
        (_fill_floats if kind.floats else _fill_groups)(part, kind, records, into)

    starts = range(0, rows, step)
    list(pool.map(fill, starts) if pool is not None else map(fill, starts))
    return Laid(kind, (rows, columns), tiles, records)


def check_finite(stored: StoredTensor, pool: ThreadPoolExecutor) -> None:
    """Check what `lay_out` checks, of a matrix that stays as it is.

    Raises:
        CorruptModel: a scale, or a float weight, is not finite.
    """
    step = _chunk_rows(stored.shape[1])

    def check(start: int) -> None:
        part = stored.rows(start, start + step).pack()
        levels = (part.scales, part.minima, part.super_scales, part.super_minima) if isinstance(part, Groups) else ()
        for level in levels:
            _raw(level)
        if not isinstance(part, Groups) and not np.isfinite(part).all():
            raise CorruptModel(f"weights must be finite numbers, got NaN or infinity as {stored.format.name}")

    list(pool.map(check, range(0, stored.shape[0], step)))


def _chunk_rows(columns: int) -> int:
    return max(1, CHUNK_BYTES // (TILE * max(columns, 1))) * TILE


def aligned(shape: tuple[int, ...], dtype: npt.DTypeLike, *, huge: bool = False) -> npt.NDArray[Any]:
    """Return zeros that start at a multiple of 64 bytes; untouched pages take no memory.

    Args:
        huge: ask for pages of 2 MiB, which are many times cheaper to touch first: for what will be written whole.
    """
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    if size >= LARGE and hasattr(mmap, "MAP_ANONYMOUS"):
        pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if huge and hasattr(mmap, "MADV_HUGEPAGE"):
            pages.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(pages, dtype, int(np.prod(shape, dtype=np.int64))).reshape(shape)
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
    rows, count = into.shape[0] * TILE, records * kind.per_record
    codes = _padded(groups.codes, (rows, count * GROUP), kind.zero)
    per_group = 2 if kind.halves else 1
    lay_groups(
        codes.view(np.uint32),
        _padded(_raw(groups.scales), (rows, count * per_group)),
        _padded(_raw(groups.minima, negative=not kind.two_level), (rows, count)),
        _padded(_raw(groups.super_scales), (rows, records)),
        _padded(_raw(groups.super_minima, negative=True), (rows, records)),
        into,
        into.view(np.uint32),
        np.array(
            [
                kind.bits,
                records,
                kind.record_bytes,
                kind.per_record,
                per_group,
                kind.scale_bytes,
                kind.group_scale_bytes,
                kind.scales_at,
                kind.supers_at,
            ],
            dtype=np.int64,
        ),
    )


def _raw(level: npt.NDArray[np.generic] | None, *, negative: bool = False) -> Bytes:
    """Bytes of scales, `[rows, groups, itemsize]`; minima with their sign turned, as the kernels add them."""
    if level is None:
        return np.empty((0, 0, 0), np.uint8)
    if level.dtype.kind == "f" and not np.isfinite(level).all():
        raise CorruptModel("scales of weights must be finite numbers, got NaN or infinity")
    signed = np.negative(level) if negative else level
    return np.ascontiguousarray(signed)[..., None].view(np.uint8)


def _padded(values: Bytes, shape: tuple[int, int], filler: int = 0) -> Bytes:
    """Whole tiles and records, contiguous; what is empty stays so."""
    if values.shape[:2] == shape or values.size == 0:
        return np.ascontiguousarray(values)
    whole = np.full((*shape, *values.shape[2:]), filler, np.uint8)
    whole[: values.shape[0], : values.shape[1]] = values
    return whole


_U = np.uintp
_U8_2, _U8_3, _U32_2 = types.uint8[:, ::1], types.uint8[:, :, ::1], types.uint32[:, ::1]


@compiled(types.void(_U32_2, _U8_3, _U8_3, _U8_3, _U8_3, _U8_2, _U32_2, types.int64[::1]))
def lay_groups(codes, scales, minima, supers, lows, into, words, plan):  # type: ignore[no-untyped-def]
    """Write whole tiles; codes come, and nibbles go, four to a 32-bit word.

    Indices are unsigned, since Numba tests signed ones for being negative.
    """
    bits, records, record_bytes, per_record, parts = plan[0], plan[1], plan[2], plan[3], plan[4]
    scale_bytes, group_scale_bytes, scales_at, supers_at = plan[5], plan[6], plan[7], plan[8]
    high = bits - 4
    nibble, mask = np.uint32(0x0F0F0F0F), np.uint32(0x01010101 * ((1 << high) - 1) & 0xFFFFFFFF)
    for tile in range(into.shape[0]):
        for record in range(records):
            base = record * record_bytes
            for group in range(per_record):
                g = record * per_record + group
                at = (base + group * 64 * bits) // 4
                if bits == 8:
                    for quad in range(8):
                        for o in range(16):
                            words[_U(tile), _U(at + 16 * quad + o)] = codes[_U(tile * 16 + o), _U(g * 8 + quad)]
                else:
                    for pair in range(4):
                        for o in range(16):
                            first = codes[_U(tile * 16 + o), _U(g * 8 + 2 * pair)]
                            second = codes[_U(tile * 16 + o), _U(g * 8 + 2 * pair + 1)]
                            words[_U(tile), _U(at + 16 * pair + o)] = (first & nibble) | (
                                (second & nibble) << np.uint32(4)
                            )
                    for quad in range(8 if high > 0 else 0):
                        place = at + 64 + 16 * (quad // (8 // high))
                        shift = np.uint32(high * (quad % (8 // high)))
                        for o in range(16):
                            code = (codes[_U(tile * 16 + o), _U(g * 8 + quad)] >> np.uint32(4)) & mask
                            words[_U(tile), _U(place + o)] |= code << shift
                size = scales.shape[2]
                at = base + scales_at + group * group_scale_bytes
                for part in range(parts):
                    for o in range(16):
                        for b in range(size):
                            into[_U(tile), _U(at + (part * 16 + o) * size + b)] = scales[
                                _U(tile * 16 + o), _U(g * parts + part), _U(b)
                            ]
                for o in range(16 if minima.shape[2] > 0 else 0):
                    for b in range(size):
                        into[_U(tile), _U(at + scale_bytes + o * size + b)] = minima[_U(tile * 16 + o), _U(g), _U(b)]
            for o in range(16 if supers.shape[2] > 0 else 0):
                for b in range(2):
                    into[_U(tile), _U(base + supers_at + 2 * o + b)] = supers[_U(tile * 16 + o), _U(record), _U(b)]
            for o in range(16 if lows.shape[2] > 0 else 0):
                for b in range(2):
                    into[_U(tile), _U(base + supers_at + 32 + 2 * o + b)] = lows[_U(tile * 16 + o), _U(record), _U(b)]
