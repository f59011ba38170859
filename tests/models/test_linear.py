"""Weights in the format that is fastest here are the same weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gamaneh.models import linear
from gamaneh.models.linear import DenseLinear, PackedLinear, make_linear

DTYPES = (torch.float32, torch.bfloat16)


def random(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 2, 5, 40])
@pytest.mark.parametrize("biased", [False, True])
def test_a_product_is_that_of_the_plain_matrix(dtype: torch.dtype, rows: int, biased: bool) -> None:
    weight, x = random(48, 24, dtype=dtype), random(rows, 24, dtype=dtype)
    bias = random(48, dtype=dtype) if biased else None
    expected = x.double() @ weight.double().T + (0.0 if bias is None else bias.double())
    close = {torch.float32: 1e-5, torch.bfloat16: 1e-1}[dtype]
    torch.testing.assert_close(make_linear(weight, bias)(x).double(), expected, rtol=close, atol=close)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_plain_matrix_comes_back_bit_by_bit(dtype: torch.dtype) -> None:
    weight = random(48, 24, dtype=dtype)
    assert torch.equal(make_linear(weight, random(48, dtype=dtype)).dense(), weight)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_bytes_are_those_of_the_weight(dtype: torch.dtype) -> None:
    assert make_linear(random(48, 24, dtype=dtype)).nbytes() == 48 * 24 * dtype.itemsize


def test_float32_is_packed_on_a_cpu() -> None:
    assert isinstance(make_linear(random(48, 24, dtype=torch.float32)), PackedLinear)


def test_types_that_the_cpu_cannot_pack_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "_packs", lambda dtype: False)
    assert isinstance(make_linear(random(48, 24, dtype=torch.bfloat16)), DenseLinear)


def test_a_refusal_of_the_library_means_that_a_type_cannot_be_packed() -> None:
    assert not linear._packs(torch.float64)
