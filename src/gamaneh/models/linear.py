"""The seam behind which weight formats live: `[rows, in] -> [rows, out]`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Linear(Protocol):
    """A weight in some format."""

    in_features: int
    out_features: int

    def __call__(self, x: Tensor) -> Tensor: ...

    def nbytes(self) -> int: ...


class DenseLinear:
    """Weight and bias as plain tensors of the computing type."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self.weight, self.bias = weight, bias

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def nbytes(self) -> int:
        return self.weight.nbytes + (0 if self.bias is None else self.bias.nbytes)


class PackedLinear:
    """bfloat16 on a CPU, packed once into the blocks that the matrix units read."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        self.packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_FOR_ROWS)

    def __call__(self, x: Tensor) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return product

    def nbytes(self) -> int:
        return self.out_features * self.in_features * 2


PACKED_FOR_ROWS = 16


def make_linear(weight: Tensor, bias: Tensor | None = None) -> Linear:
    """The fastest format for the weight's type and device."""
    packable = weight.device.type == "cpu" and weight.dtype == torch.bfloat16 and torch.backends.mkldnn.enabled
    return PackedLinear(weight, bias) if packable else DenseLinear(weight, bias)


def apply_tiled(linear: Linear, x: Tensor, splits: Sequence[int]) -> Tensor:
    """Apply `linear` to each of the row groups `splits` by itself, `[rows, in] -> [rows, out]`."""
    if len(splits) == 1:
        return linear(x)
    return torch.cat([linear(part) for part in torch.split(x, list(splits))])
