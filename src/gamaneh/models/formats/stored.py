"""A tensor as its file keeps it, and the three things that a weight format can do with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from gamaneh.errors import CorruptModel

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Weights as small integers in groups of columns: `scale * (code - zero) - minimum`.

    In two-level formats a group's scale is `scales * super_scales` and its minimum `minima * super_minima`;
    each super-scale covers 256 columns.

    Args:
        codes: uint8 `[rows, columns]`, each below `2 ** bits`; columns are filled up with `zero` to whole groups.
        bits: 4, 5, 6 or 8.
        zero: the code that stands for the number zero, before the minimum is taken off.
        group: columns per scale, 16 or 32.
        scales: `[rows, columns / group]`: float16 or float32, or in two-level formats 8-bit integers.
        minima: the same for minima; None where the format has none.
        super_scales: float16 `[rows, columns / 256]`; None in one-level formats.
        super_minima: the same for minima.
    """

    codes: Bytes
    bits: int
    zero: int
    group: int
    scales: npt.NDArray[np.generic]
    minima: npt.NDArray[np.generic] | None = None
    super_scales: npt.NDArray[np.float16] | None = None
    super_minima: npt.NDArray[np.float16] | None = None

    def expand(self) -> Floats:
        """Return the numbers, float32 `[rows, columns]`."""
        rows, columns = self.codes.shape
        values = self.codes.astype(np.float32).reshape(rows, -1, self.group) - np.float32(self.zero)
        values *= _levels(self.scales, self.super_scales)[..., None]
        if self.minima is not None:
            values -= _levels(self.minima, self.super_minima)[..., None]
        return values.reshape(rows, columns)


class Format(Protocol):
    """How the numbers of a matrix lie in bytes, row by row."""

    @property
    def name(self) -> str: ...

    @property
    def block(self) -> int:
        """Columns that share bytes: a row is a whole number of such blocks."""
        ...

    def row_bytes(self, columns: int) -> int:
        """Return the bytes of one row.

        Raises:
            CorruptModel: the format cannot hold rows of that many columns.
        """
        ...

    def pack(self, stored: StoredTensor) -> Groups | Floats:
        """Return the codes and scales, for a backend to lay out; float formats return float32 numbers."""
        ...

    def expand(self, stored: StoredTensor) -> Floats:
        """Return the numbers, float32 `[rows, columns]`: the reference for every backend."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class StoredTensor:
    """A matrix in its own bytes.

    Args:
        shape: rows and columns.
        raw: uint8 `[rows, row_bytes]`, memory-mapped where it comes from a file.
    """

    format: Format
    shape: tuple[int, int]
    raw: Bytes

    @classmethod
    def read(cls, fmt: Format, raw: npt.NDArray[np.generic], shape: tuple[int, ...], name: str) -> StoredTensor:
        """View the flat bytes `raw` of the tensor `name` as rows of `fmt`; a vector is one row.

        Raises:
            CorruptModel: the bytes do not fit the shape.
        """
        columns = shape[-1]
        rows = int(np.prod(shape[:-1], dtype=np.int64))
        nbytes = fmt.row_bytes(columns)
        flat = raw.reshape(-1).view(np.uint8)
        if flat.size != rows * nbytes:
            raise CorruptModel(
                f"tensor {name} of shape {shape} must have {rows * nbytes} bytes as {fmt.name}, got {flat.size}"
            )
        return cls(fmt, (rows, columns), flat.reshape(rows, nbytes))

    @property
    def nbytes(self) -> int:
        return self.raw.nbytes

    def rows(self, start: int, stop: int) -> StoredTensor:
        """Return rows `start` to `stop` without copying them."""
        raw = self.raw[start:stop]
        return StoredTensor(self.format, (raw.shape[0], self.shape[1]), raw)

    def take(self, order: npt.NDArray[np.intp]) -> StoredTensor:
        """Return a copy with the rows in the given order."""
        return StoredTensor(self.format, (len(order), self.shape[1]), self.raw[order])

    def column(self, index: int) -> Floats:
        """Return the numbers of one column, `[rows]`; only the blocks that hold it are read."""
        block = self.format.block
        size = self.format.row_bytes(block)
        first = index // block * size
        part = StoredTensor(
            self.format, (self.shape[0], block), np.ascontiguousarray(self.raw[:, first : first + size])
        )
        return part.expand()[:, index % block]

    def pack(self) -> Groups | Floats:
        return self.format.pack(self)

    def expand(self) -> Floats:
        return self.format.expand(self)


def check_columns(name: str, columns: int, block: int) -> int:
    """Return how many blocks a row has.

    Raises:
        CorruptModel: rows are no whole number of blocks.
    """
    if columns % block:
        raise CorruptModel(f"rows of a tensor in {name} must be a multiple of {block} numbers, got {columns}")
    return columns // block


def _levels(scales: npt.NDArray[np.generic], supers: npt.NDArray[np.float16] | None) -> Floats:
    """`[rows, groups]`, super-scales multiplied in."""
    wide = scales.astype(np.float32)
    if supers is None:
        return wide
    factors = np.repeat(supers.astype(np.float32), scales.shape[1] // supers.shape[1], axis=1)
    return np.multiply(factors, wide)
