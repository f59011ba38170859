"""Every weight format by its name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gamaneh.errors import UnsupportedModel
from gamaneh.models.formats.dense import BFLOAT16, FLOAT16, FLOAT32
from gamaneh.models.formats.foreign import ForeignFormat
from gamaneh.models.formats.int4 import INT4, Int4Format
from gamaneh.models.formats.int8 import INT8, Int8Format
from gamaneh.models.formats.q4_0 import Q4_0
from gamaneh.models.formats.q4_1 import Q4_1
from gamaneh.models.formats.q4_k import Q4_K
from gamaneh.models.formats.q5_0 import Q5_0
from gamaneh.models.formats.q5_1 import Q5_1
from gamaneh.models.formats.q5_k import Q5_K
from gamaneh.models.formats.q6_k import Q6_K
from gamaneh.models.formats.q8_0 import Q8_0
from gamaneh.models.formats.stored import Floats, Format, StoredTensor

GGUF_FORMATS: Mapping[str, Format] = {
    "F32": FLOAT32,
    "F16": FLOAT16,
    "BF16": BFLOAT16,
    **{fmt.name: fmt for fmt in (Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K)},
}
"""Formats of GGUF tensors that are read as they are."""

_FOREIGN = "Q2_K Q3_K TQ1_0 TQ2_0 MXFP4 IQ1_S IQ1_M IQ2_XXS IQ2_XS IQ2_S IQ3_XXS IQ3_S IQ4_NL IQ4_XS"
REQUANTISED: Mapping[str, Format] = {name: ForeignFormat(name) for name in _FOREIGN.split()}
"""Formats of GGUF tensors that the compiled backend rounds to int8 groups while they are loaded."""

QUANTISED: Mapping[str, Int8Format | Int4Format] = {"int8": INT8, "int4": INT4}
"""Formats that float weights can be rounded to."""


def gguf_format(kind: str, tensor: str) -> Format:
    """Return the format of a GGUF type.

    Raises:
        UnsupportedModel: we have no such format.
    """
    known = {**GGUF_FORMATS, **REQUANTISED}
    if kind not in known:
        raise UnsupportedModel(f"type of tensor {tensor} must be one of {', '.join(known)}; got {kind}")
    return known[kind]


def from_floats(values: Floats) -> StoredTensor:
    """Return float32 numbers `[rows, columns]` as a stored tensor."""
    return StoredTensor.read(FLOAT32, np.ascontiguousarray(values, dtype=np.float32), values.shape, "weights")
