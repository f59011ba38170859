"""Block types of GGUF that we only read: the `gguf` package expands them, and backends that want codes get int8."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from gamaneh.models.formats.int8 import INT8
from gamaneh.models.formats.stored import Floats, Groups, StoredTensor, check_columns


@dataclass(frozen=True, slots=True)
class ForeignFormat:
    """A type of `GGMLQuantizationType`, by its name there."""

    name: str

    @property
    def block(self) -> int:
        return GGML_QUANT_SIZES[GGMLQuantizationType[self.name]][0]

    def row_bytes(self, columns: int) -> int:
        block, nbytes = GGML_QUANT_SIZES[GGMLQuantizationType[self.name]]
        return check_columns(self.name, columns, block) * nbytes

    def pack(self, stored: StoredTensor) -> Groups:
        """Return the numbers rounded to int8 in groups of 32."""
        return INT8.pack(INT8.quantise(self.expand(stored)))

    def expand(self, stored: StoredTensor) -> Floats:
        values = dequantize(np.ascontiguousarray(stored.raw), GGMLQuantizationType[self.name])
        return np.asarray(values, dtype=np.float32).reshape(stored.shape)
