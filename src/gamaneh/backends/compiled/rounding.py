"""Float weights to int8 and int4 groups, compiled: what `formats.int8` and `formats.int4` do, many times faster."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import types

from gamaneh.backends.compiled import processor
from gamaneh.backends.compiled.assemble import Assembler, IrFunction
from gamaneh.backends.compiled.jit import FLAGS, code_folder, compiled
from gamaneh.backends.compiled.machine_ops import load_half, nearest, store_half
from gamaneh.backends.compiled.processor import Target
from gamaneh.backends.compiled.vectors import number
from gamaneh.models.formats.dense import BFLOAT16, FLOAT16, FLOAT32
from gamaneh.models.formats.int4 import LEVELS, TRIALS
from gamaneh.models.formats.known import QUANTISED
from gamaneh.models.formats.small_blocks import BLOCK, whole_blocks, write_blocks
from gamaneh.models.formats.stored import Bytes, Floats, StoredTensor

CHUNK = 1 << 17
"""Numbers that are rounded at once: they and their temporaries stay in the processor's cache."""


def rounded(tensor: StoredTensor, weights: str, pool: ThreadPoolExecutor) -> StoredTensor:
    """Round a float matrix to `int8` or `int4`; other formats stay as they are."""
    if tensor.format not in (FLOAT32, FLOAT16, BFLOAT16):
        return tensor
    rows, columns = tensor.shape
    fmt, step = QUANTISED[weights], max(1, CHUNK // columns)
    raw: Bytes = np.empty((rows, fmt.row_bytes(columns)), np.uint8)
    fill = _int8_bytes if weights == "int8" else _int4_bytes

    def round_rows(start: int) -> None:
        part = raw[start : start + step]
        part[:] = fill(whole_blocks(tensor.rows(start, start + step).expand())).reshape(part.shape)

    list(pool.map(round_rows, range(0, rows, step)))
    return StoredTensor(fmt, tensor.shape, raw)


def _int8_bytes(blocks: Floats) -> Bytes:
    flat = blocks.reshape(-1, BLOCK)
    out: Bytes = np.empty((len(flat), 2 + BLOCK), np.uint8)
    _round_int8.build()(flat, flat.view(np.int32), out)
    return out


def _int4_bytes(blocks: Floats) -> Bytes:
    """Blocks lie across the lanes of vectors, so that each has a search of its own and nothing is summed over lanes."""
    function, width, _ = _int4_kernel()
    rows, count, _ = blocks.shape
    total = rows * count
    padded = np.zeros((-(-total // width), width, BLOCK), np.float32)
    padded.reshape(-1, BLOCK)[:total] = blocks.reshape(total, BLOCK)
    lanes = np.ascontiguousarray(padded.transpose(0, 2, 1))
    scales, lows = (np.empty((len(lanes), width), np.float16) for _ in range(2))
    codes: Bytes = np.empty((len(lanes), BLOCK, width), np.uint8)
    function(lanes.ctypes.data, scales.ctypes.data, lows.ctypes.data, codes.ctypes.data, len(lanes))
    packed = codes[:, :16] | (codes[:, 16:] << np.uint8(4))
    ordered = np.ascontiguousarray(packed.transpose(0, 2, 1)).reshape(-1, 16)[:total]
    heads: list[npt.NDArray[np.float16]] = [each.reshape(-1)[:total].reshape(rows, count) for each in (scales, lows)]
    return write_blocks(heads, ordered.reshape(rows, count, 16))


_F32_2, _I32_2, _U8_2 = types.float32[:, ::1], types.int32[:, ::1], types.uint8[:, ::1]


@compiled(types.void(_F32_2, _I32_2, _U8_2), fastmath=FLAGS)
def _round_int8(values, bits, out):  # type: ignore[no-untyped-def]
    """Blocks of 32 numbers, and their bits, to the bytes of Q8_0. A number that is not finite shows in the scale."""
    most = np.empty(1, np.int32)
    largest = most.view(np.float32)
    for block in range(values.shape[0]):
        top = types.int32(0)
        for i in range(32):
            top = max(top, bits[block, i] & types.int32(0x7FFFFFFF))  # NaN is above all numbers
        most[0] = top
        address = out[block].ctypes.data
        store_half(address, largest[0] / types.float32(127))  # type: ignore[call-arg]
        scale = load_half(address)
        inverse = types.float32(1) / scale if scale > 0 else types.float32(0)
        for i in range(32):
            code = types.int32(nearest(values[block, i] * inverse))
            out[block, 2 + i] = types.uint8(min(max(code, types.int32(-127)), types.int32(127)) & 255)


@cache
def _int4_kernel() -> tuple[Callable[..., Any], int, Assembler]:
    """Return the search for this processor, how many blocks it takes side by side, and who keeps its code."""
    target = processor.host()
    function = search_int4(target)
    assembler = Assembler(target, code_folder())
    address = assembler.addresses([function])[function.name]
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4, ctypes.c_int64)(address), target.width, assembler


class _Lanes:
    """Words for vectors of float32 with one block in each lane."""

    def __init__(self, f: IrFunction, width: int) -> None:
        self.f, self.width, self.floats = f, width, f"<{width} x float>"

    def number(self, value: float) -> str:
        return "<" + ", ".join([f"float {number(value)}"] * self.width) + ">"

    def op(self, name: str, a: str, b: str) -> str:
        return self.f.op(f"{name} {self.floats} {a}, {b}")

    def fma(self, a: str, b: str, c: str) -> str:
        v = self.floats
        return self.f.call(v, f"llvm.fma.v{self.width}f32", f"{v} {a}", f"{v} {b}", f"{v} {c}")

    def pick(self, comparison: str, a: str, b: str, yes: str, no: str) -> str:
        """`yes` where `a` compares with `b`, else `no`."""
        where = self.f.op(f"fcmp {comparison} {self.floats} {a}, {b}")
        return self.f.op(f"select <{self.width} x i1> {where}, {self.floats} {yes}, {self.floats} {no}")

    def half(self, value: str) -> str:
        """Rounded to float16 and back."""
        short = self.f.op(f"fptrunc {self.floats} {value} to <{self.width} x half>")
        return self.f.op(f"fpext <{self.width} x half> {short} to {self.floats}")

    def code(self, value: str, inverse: str, offset: str) -> str:
        """`value * inverse + offset`, rounded and cut to the levels."""
        zero, top = self.number(0), self.number(LEVELS)
        near = self.f.call(
            self.floats, f"llvm.rint.v{self.width}f32", f"{self.floats} {self.fma(value, inverse, offset)}"
        )
        above = self.pick("ogt", near, zero, near, zero)
        return self.pick("olt", above, top, above, top)


def search_int4(target: Target) -> IrFunction:
    """Scale, lowest value and codes of blocks, as `formats.int4` searches for them.

    Arguments: floats `[n, 32, width]`, scales and lowest values float16 `[n, width]`, codes uint8 `[n, 32, width]`, n.
    """
    params = [("x", "ptr"), ("scales", "ptr"), ("lows", "ptr"), ("codes", "ptr"), ("n", "i64")]
    f = IrFunction("search_int4", params)
    v, width = _Lanes(f, target.width), target.width
    zero, one = v.number(0), v.number(1)
    f.do("br label %each")
    f.label("each")
    f.do("%i = phi i64 [ 0, %entry ], [ %next, %each ]")
    x = f.offset("%x", f.op(f"mul i64 %i, {4 * BLOCK * width}"))
    values = [f.op(f"load {v.floats}, ptr {f.offset(x, str(4 * width * at))}, align 4") for at in range(BLOCK)]
    low = high = total = values[0]
    for value in values[1:]:
        low, high = v.pick("olt", value, low, value, low), v.pick("ogt", value, high, value, high)
        total = v.op("fadd", total, value)

    def inverse_of(scale: str) -> str:
        return v.pick("ogt", scale, zero, v.op("fdiv", one, scale), zero)

    def judged(scale: str, start: str) -> tuple[str, str, str, str]:
        """Squared error, and sums of codes, of their squares, and of codes times numbers."""
        inverse = inverse_of(scale)
        offset = v.op("fmul", v.op("fsub", zero, start), inverse)
        error, codes, squares, both = zero, zero, zero, zero
        for value in values:
            code = v.code(value, inverse, offset)
            off = v.op("fsub", v.fma(code, scale, start), value)
            error, squares, both = v.fma(off, off, error), v.fma(code, code, squares), v.fma(code, value, both)
            codes = v.op("fadd", codes, code)
        return error, codes, squares, both

    # A number that is not finite makes the scale so.
    wrong = v.op("fmul", total, zero)
    span = v.op("fsub", high, low)
    best = [v.half(v.op("fdiv", span, v.number(LEVELS))), v.half(low)]
    best.append(judged(*best)[0])

    def better(scale: str, start: str, error: str) -> None:
        news = (scale, start, error)
        best[:] = [v.pick("olt", error, best[2], new, old) for new, old in zip(news, list(best), strict=True)]

    middle, reach = (
        v.op("fmul", v.op(name, *ends), v.number(0.5)) for name, ends in (("fadd", (low, high)), ("fsub", (high, low)))
    )
    for share in TRIALS:
        scale = v.half(v.op("fdiv", v.op("fmul", reach, v.number(2 * share)), v.number(LEVELS)))
        start = v.half(v.op("fsub", middle, v.op("fmul", reach, v.number(share))))
        error, codes, squares, both = judged(scale, start)
        better(scale, start, error)
        mean = v.op("fmul", codes, v.number(1 / BLOCK))
        spread = v.op("fsub", squares, v.op("fmul", codes, mean))
        slope = v.op("fdiv", v.op("fsub", both, v.op("fmul", mean, total)), spread)
        slope = v.pick("ogt", spread, zero, v.pick("ogt", slope, zero, slope, zero), zero)
        lowest = v.op("fsub", v.op("fmul", total, v.number(1 / BLOCK)), v.op("fmul", slope, mean))
        scale, start = v.half(slope), v.half(lowest)
        better(scale, start, judged(scale, start)[0])
    scale, start = v.op("fadd", best[0], wrong), best[1]
    inverse = inverse_of(scale)
    offset = v.op("fmul", v.op("fsub", zero, start), inverse)
    for base, value in (("%scales", scale), ("%lows", start)):
        short = f.op(f"fptrunc {v.floats} {value} to <{width} x half>")
        f.do(f"store <{width} x half> {short}, ptr {f.offset(base, f.op(f'mul i64 %i, {2 * width}'))}, align 2")
    out = f.offset("%codes", f.op(f"mul i64 %i, {BLOCK * width}"))
    for at, value in enumerate(values):
        byte = f.op(f"fptoui {v.floats} {v.code(value, inverse, offset)} to <{width} x i8>")
        f.do(f"store <{width} x i8> {byte}, ptr {f.offset(out, str(at * width))}, align 1")
    f.do("%next = add i64 %i, 1")
    f.do("%more = icmp slt i64 %next, %n")
    f.do("br i1 %more, label %each, label %end")
    f.label("end")
    return f
