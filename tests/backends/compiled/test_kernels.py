"""Products in every layout and instruction set against expanded weights; row counts change no bit of a row."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numba import types

from gamaneh.backends.compiled import kernels, processor, vectors
from gamaneh.backends.compiled.assemble import Assembler
from gamaneh.backends.compiled.jit import Compiled
from gamaneh.backends.compiled.layout import aligned, kind_of, lay_out
from gamaneh.errors import CorruptModel
from gamaneh.models.formats.known import GGUF_FORMATS
from gamaneh.models.formats.stored import StoredTensor

SCALES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
"""Where the float16 scales of a block lie, where it is not its first two bytes alone."""

ROWS, OUTPUTS = 8, 50


def random_matrix(kind):
    """A matrix of random bytes with scales of a sensible size."""
    rng = np.random.default_rng(sum(map(ord, kind)))
    block, nbytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    columns = 512 if block > 1 else 100
    if block == 1:
        values = rng.standard_normal((OUTPUTS, columns)).astype(np.float32)
        raw = {
            "F32": values,
            "F16": values.astype(np.float16),
            "BF16": (values.view(np.uint32) >> 16).astype(np.uint16),
        }
        return StoredTensor.read(GGUF_FORMATS[kind], raw[kind], values.shape, "w")
    raw = rng.integers(0, 256, (OUTPUTS, columns // block, nbytes), dtype=np.uint8)
    for at in SCALES.get(kind, (0,)):
        raw[..., at : at + 2] = rng.standard_normal((*raw.shape[:2], 1)).astype(np.float16).view(np.uint8)
    return StoredTensor.read(GGUF_FORMATS[kind], raw, (OUTPUTS, columns), "w")


def function_of(function, addresses):
    kinds = {"ptr": ctypes.c_void_p, "i64": ctypes.c_int64}
    return ctypes.CFUNCTYPE(None, *[kinds[kind] for _, kind in function.params])(addresses[function.name])


def quantised(x, assembler, target):
    """Records of activations, and the numbers that they stand for."""
    function = next(f for f in vectors.functions(target) if f.name == "quantise")
    rows, columns = x.shape
    records = aligned((rows, columns // 32, 64), np.uint8)
    call = function_of(function, assembler.addresses([function]))
    for row in range(rows):
        call(x[row].ctypes.data, records[row].ctypes.data, columns // 32)
    scales = records[..., 32:36].copy().view(np.float32)
    return records, (records[..., :32].view(np.int8) * scales).reshape(rows, columns)


@pytest.mark.parametrize("instructions", [name for name in processor.INSTRUCTION_SETS if name in processor.available()])
@pytest.mark.parametrize("kind", GGUF_FORMATS)
def test_products_equal_those_of_the_expanded_weights(kind, instructions):
    stored = random_matrix(kind)
    laid = lay_out(stored)
    target = processor.host(instructions)
    assembler = Assembler(target, None)
    x = aligned((ROWS, stored.shape[1]), np.float32)
    x[:] = np.random.default_rng(1).standard_normal(x.shape)
    records, numbers = (x, x) if laid.kind.floats else quantised(x, assembler, target)
    functions = [kernels.product(laid.kind, rows, target) for rows in target.rows]
    addresses = assembler.addresses(functions)
    want = numbers.astype(np.float64) @ stored.expand().astype(np.float64).T
    found = []
    for function, rows in zip(functions, target.rows, strict=True):
        call = function_of(function, addresses)
        got = np.zeros((ROWS, laid.tiles.shape[0] * 16), np.float32)
        out = aligned((rows, 32), np.float32)
        for row in range(0, ROWS, rows):
            for tile in range(0, laid.tiles.shape[0], 2):
                at, size = laid.tiles[tile].ctypes.data, laid.tiles.shape[1]
                call(at, size, records[row].ctypes.data, records.strides[0], laid.records, out.ctypes.data)
                got[row : row + rows, tile * 16 : tile * 16 + 32] = out
        found.append(got[:, :OUTPUTS])
    assert np.abs(found[0] - want).max() < 1e-5 * np.abs(want).max()
    assert all(np.array_equal(found[0], other) for other in found[1:])


@pytest.mark.parametrize("kind", GGUF_FORMATS)
def test_weights_take_no_more_memory_than_in_the_file(kind):
    stored = random_matrix(kind).take(np.arange(32))
    # 6-bit scales are kept in 8 bits: 2 % of the file.
    assert lay_out(stored).nbytes <= 1.03 * stored.nbytes


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_K"])
def test_scales_that_are_not_finite_are_refused(kind):
    stored = random_matrix(kind)
    raw = stored.raw.copy()
    raw[3, :4] = 255
    with pytest.raises(CorruptModel, match="must be finite numbers"):
        lay_out(StoredTensor(stored.format, stored.shape, raw))


@pytest.mark.parametrize("kind", GGUF_FORMATS)
def test_arm_code_of_every_format_uses_its_vectors(kind):
    target = processor.arm()
    layout = kind_of(random_matrix(kind))
    text = Assembler(target, None).assembly([kernels.product(layout, rows, target) for rows in target.rows])
    chunks, dots = 16 // target.width, 1 if layout.floats else 8
    assert text.count("fmla" if layout.floats else "sdot") >= sum(target.rows) * chunks * dots


def test_everything_between_the_products_is_written_for_arm():
    target = processor.arm()
    assert "fmla" in Assembler(target, None).assembly(vectors.functions(target))


def test_code_is_found_again_on_disk(tmp_path):
    target = processor.host()
    functions = [kernels.product(kind_of(random_matrix("Q4_0")), 1, target)]
    Assembler(target, tmp_path).addresses(functions)
    (path,) = tmp_path.iterdir()
    before = path.stat().st_mtime_ns
    Assembler(target, tmp_path).addresses(functions)
    assert path.stat().st_mtime_ns == before


def test_a_folder_that_cannot_be_written_costs_nothing_but_time(tmp_path):
    target = processor.host()
    assembler = Assembler(target, tmp_path / "missing")
    function = kernels.product(kind_of(random_matrix("Q4_0")), 1, target)
    assert assembler.addresses([function])[function.name]


def test_compiled_steps_need_no_folder_that_can_be_written(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    code = (
        "from gamaneh.backends.compiled import jit, layout;"
        "assert jit.code_folder() is None;"
        "layout.lay_groups.build();"
        "print('built')"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": "", "GAMANEH_CACHE": str(blocked)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "built", done.stderr


def test_a_full_disk_costs_nothing_but_time(tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("gamaneh.backends.compiled.assemble.tempfile.mkstemp", full)
    monkeypatch.setattr("numba.core.caching.IndexDataCacheFile.save", full)
    target = processor.host()
    function = kernels.product(kind_of(random_matrix("Q4_0")), 1, target)
    assert Assembler(target, tmp_path).addresses([function])[function.name]
    twice = Compiled(lambda x: 2 * x, types.int64(types.int64))
    assert twice(21) == 42
    assert not list(tmp_path.iterdir())
