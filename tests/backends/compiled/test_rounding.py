"""Compiled rounding gives what the formats' own does."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gamaneh.backends.compiled import processor
from gamaneh.backends.compiled.assemble import Assembler
from gamaneh.backends.compiled.layout import lay_out
from gamaneh.backends.compiled.rounding import rounded, search_int4
from gamaneh.errors import CorruptModel
from gamaneh.models.formats.dense import FLOAT16
from gamaneh.models.formats.known import GGUF_FORMATS, QUANTISED, from_floats
from gamaneh.models.formats.stored import StoredTensor

pytestmark = pytest.mark.skipif(not processor.available(), reason="this processor runs no compiled kernels")


@pytest.fixture
def pool():
    with ThreadPoolExecutor(2) as made:
        yield made


def noise(rows, columns):
    values = np.random.default_rng(columns).standard_normal((rows, columns)).astype(np.float32)
    values[0, :32], values[1, :32] = 0, 0.75  # no range, and no range around another number
    return values


def distance(stored, values):
    return np.linalg.norm(stored.expand() - values)


@pytest.mark.parametrize("columns", [256, 50, 1])
def test_int8_has_the_bytes_of_the_format(columns, pool):
    values = noise(40, columns)
    assert np.array_equal(rounded(from_floats(values), "int8", pool).raw, QUANTISED["int8"].quantise(values).raw)


@pytest.mark.parametrize("columns", [256, 50, 1])
def test_int4_is_as_close_as_the_search_of_the_format(columns, pool):
    values = noise(40, columns)
    found, wanted = rounded(from_floats(values), "int4", pool), QUANTISED["int4"].quantise(values)
    assert found.raw.shape == wanted.raw.shape
    assert distance(found, values) <= 1.0001 * distance(wanted, values)


def test_rows_are_rounded_alike_in_every_float_type(pool):
    values = noise(9, 64).astype(np.float16)
    halves = StoredTensor.read(FLOAT16, values, values.shape, "w")
    floats = from_floats(values.astype(np.float32))
    assert np.array_equal(rounded(halves, "int4", pool).raw, rounded(floats, "int4", pool).raw)


def test_block_formats_stay_as_they_are(pool):
    stored = StoredTensor.read(GGUF_FORMATS["Q4_K"], np.zeros((3, 144), np.uint8), (3, 256), "w")
    assert rounded(stored, "int8", pool) is stored


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("weights", QUANTISED)
def test_numbers_that_are_not_finite_are_still_seen(weights, wrong, pool):
    values = noise(4, 64)
    values[2, 40] = wrong
    with pytest.raises(CorruptModel, match="must be finite numbers"):
        lay_out(rounded(from_floats(values), weights, pool))


def test_the_search_is_written_for_arm_too():
    target = processor.arm()
    assert "fmla" in Assembler(target, None).assembly([search_int4(target)])
