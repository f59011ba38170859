"""Weight formats against the `gguf` package, and what rounding costs."""

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from gamaneh.errors import CorruptModel, UnsupportedModel
from gamaneh.models.formats.dense import BFLOAT16, FLOAT16
from gamaneh.models.formats.int4 import INT4
from gamaneh.models.formats.int8 import INT8
from gamaneh.models.formats.known import GGUF_FORMATS, REQUANTISED, gguf_format
from gamaneh.models.formats.stored import Groups, StoredTensor

HALVES = {
    "Q8_0": (0,),
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
}
"""Where the float16 scales of a block lie."""


def random_rows(kind, rows=5, blocks=3):
    """Bytes of random codes with finite scales, `[rows, row_bytes]`, and the number of columns."""
    block, nbytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    rng = np.random.default_rng(sum(map(ord, kind)))
    raw = rng.integers(0, 256, (rows, blocks, nbytes), dtype=np.uint8)
    for at in HALVES.get(kind, ()):
        raw[..., at : at + 2] = rng.standard_normal((rows, blocks, 1)).astype(np.float16).view(np.uint8)
    return raw.reshape(rows, -1), blocks * block


@pytest.mark.parametrize("kind", sorted(HALVES))
def test_block_formats_expand_exactly_like_the_gguf_package(kind):
    raw, columns = random_rows(kind)
    stored = StoredTensor.read(gguf_format(kind, "w"), raw, (5, columns), "w")
    assert np.array_equal(stored.expand(), dequantize(raw, GGMLQuantizationType[kind]))


@pytest.mark.parametrize("kind", sorted(HALVES))
def test_packed_codes_stay_within_their_bits(kind):
    raw, columns = random_rows(kind)
    groups = StoredTensor.read(gguf_format(kind, "w"), raw, (5, columns), "w").pack()
    assert isinstance(groups, Groups)
    assert groups.codes.shape == (5, columns)
    assert groups.codes.max() < 2**groups.bits
    assert groups.scales.shape == (5, columns // groups.group)


@pytest.mark.parametrize(("kind", "dtype"), [("F32", np.float32), ("F16", np.float16)])
def test_floats_expand_to_themselves(kind, dtype):
    values = np.random.default_rng(0).standard_normal((3, 7)).astype(dtype)
    stored = StoredTensor.read(GGUF_FORMATS[kind], values, values.shape, "w")
    assert np.array_equal(stored.expand(), values.astype(np.float32))


def test_bfloat16_is_the_upper_half_of_float32():
    bits = np.random.default_rng(0).integers(0, 0x7F00, (3, 7), dtype=np.uint16)
    stored = StoredTensor.read(BFLOAT16, bits, bits.shape, "w")
    assert np.array_equal(stored.expand().view(np.uint32), bits.astype(np.uint32) << 16)


@pytest.mark.parametrize(("fmt", "bound"), [(INT8, 0.006), (INT4, 0.09)])
@pytest.mark.parametrize("columns", [64, 50])
def test_rounding_to_groups_costs_little(fmt, bound, columns):
    values = np.random.default_rng(1).standard_normal((40, columns)).astype(np.float32)
    stored = fmt.quantise(values)
    assert stored.shape == values.shape
    assert stored.raw.shape[1] == fmt.row_bytes(columns)
    assert np.linalg.norm(stored.expand() - values) / np.linalg.norm(values) < bound


def test_searched_scales_are_better_than_the_whole_range():
    values = np.random.default_rng(2).standard_normal((40, 256)).astype(np.float32)
    blocks = values.reshape(40, 8, 32)
    low, high = blocks.min(-1, keepdims=True), blocks.max(-1, keepdims=True)
    plain = np.rint((blocks - low) / (high - low) * 15) * (high - low) / 15 + low
    error = np.linalg.norm(INT4.quantise(values).expand() - values)
    assert error < 0.95 * np.linalg.norm(plain.reshape(40, 256) - values)


@pytest.mark.parametrize("fmt", [INT8, INT4])
def test_a_group_of_zeros_stays_zero(fmt):
    assert not fmt.quantise(np.zeros((2, 32), np.float32)).expand().any()


@pytest.mark.parametrize("kind", REQUANTISED)
def test_other_block_types_are_rounded_to_int8_where_codes_are_wanted(kind):
    raw = np.full((4, 3 * GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1]), 0x23, np.uint8)  # scales of about 0.014
    if kind == "MXFP4":
        raw[:, ::17] = 127  # exponents of scales
    columns = 3 * GGML_QUANT_SIZES[GGMLQuantizationType[kind]][0]
    stored = StoredTensor.read(gguf_format(kind, "w"), raw, (4, columns), "w")
    expected = dequantize(raw, GGMLQuantizationType[kind])
    assert expected.any()
    assert np.array_equal(stored.expand(), expected)
    assert np.abs(stored.pack().expand() - expected).max() <= np.abs(expected).max() / 127


def test_unknown_types_are_refused_by_name():
    with pytest.raises(UnsupportedModel, match=r"type of tensor w must be one of F32, .*Q6_K, .*IQ4_XS; got I8"):
        gguf_format("I8", "w")


def test_bytes_that_do_not_fit_the_shape_are_refused():
    with pytest.raises(CorruptModel, match="must have 48 bytes as float16, got 46"):
        StoredTensor.read(FLOAT16, np.zeros(46, np.uint8), (3, 8), "w")
    with pytest.raises(CorruptModel, match=r"rows of a tensor in Q4_K must be a multiple of 256 numbers, got 128"):
        gguf_format("Q4_K", "w").row_bytes(128)


def test_rows_and_order_are_views_of_the_same_numbers():
    raw, columns = random_rows("Q6_K")
    stored = StoredTensor.read(gguf_format("Q6_K", "w"), raw, (5, columns), "w")
    whole = stored.expand()
    assert np.array_equal(stored.rows(1, 3).expand(), whole[1:3])
    assert np.array_equal(stored.take(np.array([4, 0])).expand(), whole[[4, 0]])


@pytest.mark.parametrize("kind", ["Q8_0", "Q5_1", "Q4_K", "Q6_K"])
def test_a_column_is_read_alone(kind):
    raw, columns = random_rows(kind)
    stored = StoredTensor.read(gguf_format(kind, "w"), raw, (5, columns), "w")
    for index in (0, 31, columns - 1):
        assert np.array_equal(stored.column(index), stored.expand()[:, index])
