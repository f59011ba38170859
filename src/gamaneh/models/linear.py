"""The seam behind which weight formats live: `[rows, in] -> [rows, out]`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Linear(Protocol):
    """A weight in some format."""

    in_features: int
    out_features: int
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor: ...

    def dense(self) -> Tensor:
        """The weight as a plain matrix, `[out, in]`."""
        ...

    def nbytes(self) -> int: ...


class DenseLinear:
    """Weight and bias as plain tensors of the computing type."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def dense(self) -> Tensor:
        return self.weight

    def nbytes(self) -> int:
        return self.weight.nbytes + _nbytes(self.bias)


class PackedLinear:
    """Weight of a CPU, packed once into the blocks that its matrix or vector units read.

    Few rows, which is what a verify has, take hardly longer than one; `F.linear` takes several times as long on some
    CPUs (docs/log.md).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self.bias, self.dtype = bias, weight.dtype
        self.packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_ROWS)

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x, self.bias)

    def dense(self) -> Tensor:
        """The product with the identity, which changes no bit."""
        return self._product(torch.eye(self.in_features, dtype=self.dtype), None).T.contiguous()

    def nbytes(self) -> int:
        return self.out_features * self.in_features * self.dtype.itemsize + _nbytes(self.bias)

    def _product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, bias, "none", [], "")
        return product


PACKED_FOR_ROWS = 16


def make_linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """The fastest format for the weight's type and device."""
    packed = weight.device.type == "cpu" and torch.backends.mkldnn.enabled and _packs(weight.dtype)
    return PackedLinear(weight, bias) if packed else DenseLinear(weight, bias)


@cache
def _packs(dtype: torch.dtype) -> bool:
    """Whether this CPU has packed products of this type: bfloat16 wants AVX-512 or better."""
    try:
        PackedLinear(torch.zeros(1, 1, dtype=dtype))
    except RuntimeError:
        return False
    return True


def apply_tiled(linear: Linear, x: Tensor, splits: Sequence[int]) -> Tensor:
    """Apply `linear` to each of the row groups `splits` by itself, `[rows, in] -> [rows, out]`."""
    if len(splits) == 1:
        return linear(x)
    return torch.cat([linear(part) for part in torch.split(x, list(splits))])


def _nbytes(bias: Tensor | None) -> int:
    return 0 if bias is None else bias.nbytes
