"""float32, bfloat16 and float16: numbers as they are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gamaneh.models.formats.stored import Floats, StoredTensor


@dataclass(frozen=True, slots=True)
class DenseFormat:
    """A float type.

    Args:
        itemsize: bytes of one number.
    """

    name: str
    itemsize: int
    block: int = 1

    def row_bytes(self, columns: int) -> int:
        return columns * self.itemsize

    def pack(self, stored: StoredTensor) -> Floats:
        return self.expand(stored)

    def expand(self, stored: StoredTensor) -> Floats:
        raw = np.ascontiguousarray(stored.raw)
        if self is BFLOAT16:
            return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        return raw.view(np.float16 if self is FLOAT16 else np.float32).astype(np.float32)


FLOAT32 = DenseFormat("float32", 4)
BFLOAT16 = DenseFormat("bfloat16", 2)
FLOAT16 = DenseFormat("float16", 2)
