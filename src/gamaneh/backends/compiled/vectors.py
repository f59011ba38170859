"""What stands between the products, as LLVM IR: norm, quantising, gates, scores, softmax and mixing of values."""

from __future__ import annotations

import struct

from gamaneh.backends.compiled.assemble import IrFunction
from gamaneh.backends.compiled.kernels import GROUP, TILE, X_HALF_STARTS, X_RECORD, X_SCALE, X_STARTS, X_SUM
from gamaneh.backends.compiled.processor import Target

BLOCK = 16
"""Positions in one block of the cache: their scores fill one vector of 16."""

QUERIES = (8, 4, 2, 1)
"""Queries that a kernel of scores takes at once."""

MIXED = (4, 2, 1)
"""Queries that a kernel of values takes at once."""

NARROW = 16
"""Channels that every kernel of values can do; `wide` tells how many it had better do at once."""

_MAGIC = 12582912.0
"""1.5 * 2**23: adding it leaves a number's nearest integer in the low bits."""

_MAGIC_BITS = 0x4B400000


def functions(target: Target) -> list[IrFunction]:
    """Return every kernel of this module."""
    return [
        _quantise(target),
        _norm(target),
        _gate(target, "silu"),
        _gate(target, "gelu_tanh"),
        _cap(target),
        _softmax(target),
        *(_scores(target, queries) for queries in QUERIES),
        *(_mix(target, queries, channels) for queries in MIXED for channels in sorted({wide(target), NARROW})),
    ]


def wide(target: Target) -> int:
    """Return the channels of four queries that fit into the registers."""
    return 64 if target.width == 16 else NARROW


class _Vectors:
    """Words for vectors of one target's width."""

    def __init__(self, function: IrFunction, target: Target) -> None:
        self.f, self.width = function, target.width
        self.chunks = TILE // target.width
        self.floats, self.ints = f"<{self.width} x float>", f"<{self.width} x i32>"

    def all_floats(self, value: float) -> str:
        return "<" + ", ".join([f"float {number(value)}"] * self.width) + ">"

    def all_ints(self, value: int) -> str:
        return "<" + ", ".join([f"i32 {value}"] * self.width) + ">"

    def spread(self, value: str) -> str:
        first = self.f.op(f"insertelement {self.floats} poison, float {value}, i32 0")
        return self.f.op(f"shufflevector {self.floats} {first}, {self.floats} poison, {self.ints} zeroinitializer")

    def load(self, base: str, at: int) -> str:
        """Chunk `at` of the floats at `base`."""
        place = self.f.offset(base, str(4 * self.width * at))
        return self.f.op(f"load {self.floats}, ptr {place}, align 4")

    def store(self, value: str, base: str, at: int) -> None:
        place = self.f.offset(base, str(4 * self.width * at))
        self.f.do(f"store {self.floats} {value}, ptr {place}, align 4")

    def load_half(self, base: str, at: int) -> str:
        place = self.f.offset(base, str(2 * self.width * at))
        half = self.f.op(f"load <{self.width} x half>, ptr {place}, align {2 * self.width}")
        return self.f.op(f"fpext <{self.width} x half> {half} to {self.floats}")

    def fma(self, a: str, b: str, c: str) -> str:
        v = self.floats
        return self.f.call(v, f"llvm.fma.v{self.width}f32", f"{v} {a}", f"{v} {b}", f"{v} {c}")

    def binary(self, name: str, a: str, b: str) -> str:
        return self.f.op(f"{name} {self.floats} {a}, {b}")

    def sum(self, value: str) -> str:
        """Sum over lanes, in their order halved again and again."""
        v, size = value, self.width
        while size > 1:
            half = size // 2
            kind = f"<{size} x float>"
            low = ", ".join(f"i32 {i}" for i in range(half))
            high = ", ".join(f"i32 {i}" for i in range(half, size))
            a = self.f.op(f"shufflevector {kind} {v}, {kind} poison, <{half} x i32> <{low}>")
            b = self.f.op(f"shufflevector {kind} {v}, {kind} poison, <{half} x i32> <{high}>")
            v, size = self.f.op(f"fadd <{half} x float> {a}, {b}"), half
        return self.f.op(f"extractelement <1 x float> {v}, i32 0")

    def sum_ints(self, value: str) -> str:
        return self.f.call("i32", f"llvm.vector.reduce.add.v{self.width}i32", f"{self.ints} {value}")

    def exp(self, value: str) -> str:
        """e**value by a polynomial, relative error about 2e-7; below -87 it is about 1e-38, NaN stays NaN."""
        x = self._limit("olt", value, -87.0)
        x = self._limit("ogt", x, 88.0)
        rounded = self.fma(x, self.all_floats(1.4426950408889634), self.all_floats(_MAGIC))
        whole = self.binary("fsub", rounded, self.all_floats(_MAGIC))
        # ln 2 in two parts, so that the rest keeps its bits where x is large.
        y = self.fma(whole, self.all_floats(-0.693145751953125), x)
        y = self.fma(whole, self.all_floats(-1.428606765330187e-06), y)
        e = self.all_floats(1 / 720)
        for factor in (1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0):
            e = self.fma(e, y, self.all_floats(factor))
        bits = self.f.op(f"bitcast {self.floats} {rounded} to {self.ints}")
        shifted = self.f.op(f"shl {self.ints} {bits}, {self.all_ints(23)}")
        power = self.f.op(f"add {self.ints} {shifted}, {self.all_ints(127 << 23)}")
        return self.binary("fmul", e, self.f.op(f"bitcast {self.ints} {power} to {self.floats}"))

    def _limit(self, comparison: str, value: str, bound: float) -> str:
        limit = self.all_floats(bound)
        beyond = self.f.op(f"fcmp {comparison} {self.floats} {value}, {limit}")
        return self.f.op(f"select <{self.width} x i1> {beyond}, {self.floats} {limit}, {self.floats} {value}")


class _Loop:
    """A counted loop; numbers carried from round to round are named before their next value is known.

    Args:
        carried: type and first value of each.
    """

    def __init__(self, f: IrFunction, name: str, first: str, last: str, carried: list[tuple[str, str]]) -> None:
        name = f"loop_{name}"
        self.f, self.name, self.last = f, name, last
        before = f.block
        f.do(f"%{name}_any = icmp slt i64 {first}, {last}")
        f.do(f"br i1 %{name}_any, label %{name}, label %{name}_end")
        f.label(name)
        self.before, self.first, self.carried = before, first, carried
        f.do(f"%{name}_i = phi i64 [ {first}, %{before} ], [ %{name}_next, %{name}_back ]")
        self.i = f"%{name}_i"
        self.values = []
        for at, (kind, start) in enumerate(carried):
            f.do(f"%{name}_{at} = phi {kind} [ {start}, %{before} ], [ %{name}_{at}_new, %{name}_back ]")
            self.values.append(f"%{name}_{at}")

    def end(self, news: list[str]) -> list[str]:
        """Close the loop with the next values; returns the final ones."""
        f, name = self.f, self.name
        f.do(f"br label %{name}_back")
        f.label(f"{name}_back")
        for at, ((kind, _), new) in enumerate(zip(self.carried, news, strict=True)):
            f.do(f"%{name}_{at}_new = select i1 true, {kind} {new}, {kind} {new}")
        f.do(f"%{name}_next = add i64 {self.i}, 1")
        f.do(f"%{name}_more = icmp slt i64 %{name}_next, {self.last}")
        f.do(f"br i1 %{name}_more, label %{name}, label %{name}_end")
        f.label(f"{name}_end")
        results = []
        for at, (kind, start) in enumerate(self.carried):
            f.do(f"%{name}_{at}_out = phi {kind} [ {start}, %{self.before} ], [ %{name}_{at}_new, %{name}_back ]")
            results.append(f"%{name}_{at}_out")
        return results


def number(value: float) -> str:
    """A float32 as LLVM writes it: by the bits of the float64 that equals it."""
    single = struct.unpack("<f", struct.pack("<f", value))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', single))[0]:016X}"


def _quantise(target: Target) -> IrFunction:
    """Round floats to int8 in groups of 32: `x`, records, number of groups.

    The largest magnitude is found among the bits, where NaN is above every number: it becomes the scale.
    """
    f = IrFunction("quantise", [("x", "ptr"), ("out", "ptr"), ("groups", "i64")])
    v = _Vectors(f, target)
    chunks = GROUP // v.width
    loop = _Loop(f, "group", "0", "%groups", [])
    x = f.offset("%x", f.op(f"mul i64 {loop.i}, {4 * GROUP}"))
    out = f.offset("%out", f.op(f"mul i64 {loop.i}, {X_RECORD}"))
    values = [v.load(x, at) for at in range(chunks)]
    top = ""
    for value in values:
        bits = f.op(f"bitcast {v.floats} {value} to {v.ints}")
        size = f.op(f"and {v.ints} {bits}, {v.all_ints(0x7FFFFFFF)}")
        top = size if not top else f.call(v.ints, f"llvm.umax.v{v.width}i32", f"{v.ints} {top}", f"{v.ints} {size}")
    most = f.call("i32", f"llvm.vector.reduce.umax.v{v.width}i32", f"{v.ints} {top}")
    some = f.op(f"icmp ugt i32 {most}, {struct.unpack('<i', struct.pack('<f', 1e-30))[0]}")
    largest = f.op(f"bitcast i32 {most} to float")
    zero = number(0.0)
    scale = f.op(f"select i1 {some}, float {f.op(f'fdiv float {largest}, {number(127.0)}')}, float {zero}")
    inverse = f.op(f"select i1 {some}, float {f.op(f'fdiv float {number(127.0)}, {largest}')}, float {zero}")
    spread = v.spread(inverse)
    halves = []
    for half in range(2):
        total = ""
        for at in range(half * chunks // 2, (half + 1) * chunks // 2):
            rounded = v.fma(values[at], spread, v.all_floats(_MAGIC))
            bits = f.op(f"bitcast {v.floats} {rounded} to {v.ints}")
            code = f.op(f"sub {v.ints} {bits}, {v.all_ints(_MAGIC_BITS)}")
            small = f.op(f"trunc {v.ints} {code} to <{v.width} x i8>")
            f.do(f"store <{v.width} x i8> {small}, ptr {f.offset(out, str(at * v.width))}, align {v.width}")
            total = code if not total else f.op(f"add {v.ints} {total}, {code}")
        halves.append(v.sum_ints(total))
    both = f.op(f"add i32 {halves[0]}, {halves[1]}")
    f.do(f"store float {scale}, ptr {f.offset(out, str(X_SCALE))}, align 4")
    weighted = f.op(f"fmul float {scale}, {f.op(f'sitofp i32 {both} to float')}")
    f.do(f"store float {weighted}, ptr {f.offset(out, str(X_SUM))}, align 4")
    starts = [(both, nought, place) for nought, place in X_STARTS.items()]
    starts += [
        (halves[at], nought, place) for nought, places in X_HALF_STARTS.items() for at, place in enumerate(places)
    ]
    for total, nought, place in starts:
        start = f.op(f"mul i32 {total}, {-nought}")
        f.do(f"store i32 {start}, ptr {f.offset(out, str(place))}, align 4")
    loop.end([])
    return f


def _norm(target: Target) -> IrFunction:
    """Root-mean-square norm (Zhang & Sennrich 2019, eq. 4): `x`, weight, eps, length, groups of 32, output.

    Numbers behind the length, up to whole groups, must be zero.
    """
    params = [("x", "ptr"), ("w", "ptr"), ("eps", "float"), ("n", "float"), ("groups", "i64"), ("out", "ptr")]
    f = IrFunction("norm", params)
    v = _Vectors(f, target)
    chunks = GROUP // v.width
    loop = _Loop(f, "square", "0", "%groups", [(v.floats, "zeroinitializer")] * chunks)
    x = f.offset("%x", f.op(f"mul i64 {loop.i}, {4 * GROUP}"))
    news = []
    for at, old in enumerate(loop.values):
        value = v.load(x, at)
        news.append(v.fma(value, value, old))
    sums = loop.end(news)
    while len(sums) > 1:
        sums = [v.binary("fadd", a, b) for a, b in zip(sums[::2], sums[1::2], strict=True)]
    mean = f.op(f"fdiv float {v.sum(sums[0])}, %n")
    root = f.call("float", "llvm.sqrt.f32", f"float {f.op(f'fadd float {mean}, %eps')}")
    factor = v.spread(f.op(f"fdiv float {number(1.0)}, {root}"))
    loop = _Loop(f, "scale", "0", "%groups", [])
    at_bytes = f.op(f"mul i64 {loop.i}, {4 * GROUP}")
    x, w, out = (f.offset(base, at_bytes) for base in ("%x", "%w", "%out"))
    for at in range(chunks):
        v.store(v.binary("fmul", v.binary("fmul", v.load(x, at), factor), v.load(w, at)), out, at)
    loop.end([])
    return f


def _gate(target: Target, activation: str) -> IrFunction:
    """Activation of the gate times up: gate, up, output, groups of 32.

    Both activations are x / (1 + exp(-s)): s is x for silu, and for the tanh form of gelu
    (Hendrycks & Gimpel 2016) twice the argument of tanh.
    """
    f = IrFunction(f"gate_{activation}", [("g", "ptr"), ("u", "ptr"), ("out", "ptr"), ("groups", "i64")])
    v = _Vectors(f, target)
    loop = _Loop(f, "group", "0", "%groups", [])
    at_bytes = f.op(f"mul i64 {loop.i}, {4 * GROUP}")
    g, u, out = (f.offset(base, at_bytes) for base in ("%g", "%u", "%out"))
    for at in range(GROUP // v.width):
        x = v.load(g, at)
        if activation == "silu":
            negative = v.binary("fmul", x, v.all_floats(-1.0))
        else:
            root = 0.7978845608028654
            inside = v.fma(v.binary("fmul", x, x), v.all_floats(-2 * root * 0.044715), v.all_floats(-2 * root))
            negative = v.binary("fmul", x, inside)
        below = v.binary("fadd", v.exp(negative), v.all_floats(1.0))
        v.store(v.binary("fmul", v.binary("fdiv", x, below), v.load(u, at)), out, at)
    loop.end([])
    return f


def _cap(target: Target) -> IrFunction:
    """cap * tanh(row / cap) in place: row, its vectors of 16, where cap stands. tanh y is 1 - 2 / (exp(2 y) + 1)."""
    f = IrFunction("cap", [("row", "ptr"), ("vectors", "i64"), ("cap", "ptr")])
    v = _Vectors(f, target)
    cap = v.spread(f.op("load float, ptr %cap, align 4"))
    factor = v.binary("fdiv", v.all_floats(2.0), cap)
    loop = _Loop(f, "tanh", "0", "%vectors", [])
    row = f.offset("%row", f.op(f"mul i64 {loop.i}, {4 * TILE}"))
    for at in range(v.chunks):
        below = v.binary("fadd", v.exp(v.binary("fmul", v.load(row, at), factor)), v.all_floats(1.0))
        tanh = v.binary("fsub", v.all_floats(1.0), v.binary("fdiv", v.all_floats(2.0), below))
        v.store(v.binary("fmul", tanh, cap), row, at)
    loop.end([])
    return f


def _softmax(target: Target) -> IrFunction:
    """exp(row - largest) in place: row, its vectors of 16, where the sum goes. Unused lanes must hold -infinity."""
    f = IrFunction("softmax", [("row", "ptr"), ("vectors", "i64"), ("total", "ptr")])
    v = _Vectors(f, target)
    low = v.all_floats(float("-inf"))
    loop = _Loop(f, "top", "0", "%vectors", [(v.floats, low)] * v.chunks)
    row = f.offset("%row", f.op(f"mul i64 {loop.i}, {4 * TILE}"))
    tops = loop.end([_larger(v, v.load(row, at), old) for at, old in enumerate(loop.values)])
    top = tops[0]
    for other in tops[1:]:
        top = _larger(v, other, top)
    size = v.width
    while size > 1:
        half = size // 2
        order = [(lane + half) % size if lane < size else lane for lane in range(v.width)]
        mask = ", ".join(f"i32 {lane}" for lane in order)
        turned = f.op(f"shufflevector {v.floats} {top}, {v.floats} poison, {v.ints} <{mask}>")
        top = _larger(v, turned, top)
        size = half
    largest = v.spread(f.op(f"extractelement {v.floats} {top}, i32 0"))
    loop = _Loop(f, "exp", "0", "%vectors", [(v.floats, "zeroinitializer")] * v.chunks)
    row = f.offset("%row", f.op(f"mul i64 {loop.i}, {4 * TILE}"))
    news = []
    for at, old in enumerate(loop.values):
        e = v.exp(v.binary("fsub", v.load(row, at), largest))
        v.store(e, row, at)
        news.append(v.binary("fadd", old, e))
    sums = loop.end(news)
    while len(sums) > 1:
        sums = [v.binary("fadd", a, b) for a, b in zip(sums[::2], sums[1::2], strict=True)]
    f.do(f"store float {v.sum(sums[0])}, ptr %total, align 4")
    return f


def _larger(v: _Vectors, a: str, b: str) -> str:
    above = v.f.op(f"fcmp ogt {v.floats} {a}, {b}")
    return v.f.op(f"select <{v.width} x i1> {above}, {v.floats} {a}, {v.floats} {b}")


def _scores(target: Target, queries: int) -> IrFunction:
    """Scores of queries against blocks of keys.

    Arguments: queries, bytes between them, keys of one head in block 0, table of blocks (int32), first and last + 1
    block of the sequence, bytes of a block, channels, output of block 0, bytes between rows of the output, values of
    the head in block 0, bytes of a block of values.

    Blocks are short and lie apart, so the next block of keys, and the values that are wanted afterwards, are asked for.
    The table must have one entry more than there are blocks.
    """
    params = [("q", "ptr"), ("qs", "i64"), ("k", "ptr"), ("table", "ptr"), ("first", "i64"), ("last", "i64")]
    params += [("ks", "i64"), ("dim", "i64"), ("out", "ptr"), ("os", "i64"), ("v", "ptr"), ("vs", "i64")]
    f = IrFunction(f"scores_{queries}", params)
    v = _Vectors(f, target)
    outer = _Loop(f, "block", "%first", "%last", [])
    entry = f.op(f"load i32, ptr {f.offset('%table', f.op(f'shl i64 {outer.i}, 2'))}, align 4")
    number = f.op(f"zext i32 {entry} to i64")
    keys = f.offset("%k", f.op(f"mul i64 {number}, %ks"))
    values = f.offset("%v", f.op(f"mul i64 {number}, %vs"))
    following = f.op(f"add i64 {outer.i}, 1")
    entry = f.op(f"load i32, ptr {f.offset('%table', f.op(f'shl i64 {following}, 2'))}, align 4")
    following_keys = f.offset("%k", f.op(f"mul i64 {f.op(f'zext i32 {entry} to i64')}, %ks"))
    # Even and odd channels are summed apart: twice as many chains of additions that do not wait for each other.
    cells = queries * v.chunks
    pairs = f.op("lshr i64 %dim, 1")
    loop = _Loop(f, "dim", "0", pairs, [(v.floats, "zeroinitializer")] * (2 * cells))
    at_keys = f.offset(keys, f.op(f"mul i64 {loop.i}, {4 * BLOCK}"))
    loaded = [v.load_half(at_keys, at) for at in range(2 * v.chunks)]
    f.declared.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
    for wanted in (following_keys, values):
        line = f.offset(wanted, f.op(f"mul i64 {loop.i}, {4 * BLOCK}"))
        f.do(f"call void @llvm.prefetch.p0(ptr {line}, i32 0, i32 3, i32 1)")
    at_query = f.offset("%q", f.op(f"shl i64 {loop.i}, 3"))
    news = []
    for query in range(queries):
        for odd in range(2):
            value = v.spread(f.op(f"load float, ptr {f.offset(at_query, str(4 * odd))}, align 4"))
            for at in range(v.chunks):
                old = loop.values[(2 * query + odd) * v.chunks + at]
                news.append(v.fma(value, loaded[odd * v.chunks + at], old))
        at_query = f.offset(at_query, "%qs")
    sums = loop.end(news)
    results = []
    for query in range(queries):
        first = 2 * query * v.chunks
        results += [v.binary("fadd", sums[first + at], sums[first + v.chunks + at]) for at in range(v.chunks)]
    out = f.offset("%out", f.op(f"mul i64 {outer.i}, {4 * BLOCK}"))
    for query in range(queries):
        for at in range(v.chunks):
            v.store(results[query * v.chunks + at], out, at)
        out = f.offset(out, "%os")
    outer.end([])
    return f


def _mix(target: Target, queries: int, channels: int) -> IrFunction:
    """Add weighted values to running sums, position by position.

    Arguments: weights of position 0, bytes between queries' weights, values of one head in block 0, table of blocks,
    first and last + 1 position, bytes of a block, bytes of a position, sums, bytes between queries' sums.
    """
    params = [("w", "ptr"), ("ws", "i64"), ("v", "ptr"), ("table", "ptr"), ("first", "i64"), ("last", "i64")]
    params += [("bs", "i64"), ("ps", "i64"), ("out", "ptr"), ("os", "i64")]
    f = IrFunction(f"mix_{queries}_{channels}", params)
    v = _Vectors(f, target)
    vectors = channels // v.width
    outs = ["%out"]
    for _ in range(1, queries):
        outs.append(f.offset(outs[-1], "%os"))
    starts = [(v.floats, v.load(out, at)) for out in outs for at in range(vectors)]
    loop = _Loop(f, "position", "%first", "%last", starts)
    index = f.op(f"lshr i64 {loop.i}, 4")
    entry = f.op(f"load i32, ptr {f.offset('%table', f.op(f'shl i64 {index}, 2'))}, align 4")
    block = f.op(f"mul i64 {f.op(f'zext i32 {entry} to i64')}, %bs")
    inside = f.op(f"mul i64 {f.op(f'and i64 {loop.i}, 15')}, %ps")
    values = f.offset("%v", block, inside)
    loaded = [v.load_half(values, at) for at in range(vectors)]
    weight_at = f.offset("%w", f.op(f"shl i64 {loop.i}, 2"))
    news = []
    for query in range(queries):
        weight = v.spread(f.op(f"load float, ptr {weight_at}, align 4"))
        news += [v.fma(weight, loaded[at], loop.values[query * vectors + at]) for at in range(vectors)]
        weight_at = f.offset(weight_at, "%ws")
    results = loop.end(news)
    for query, out in enumerate(outs):
        for at in range(vectors):
            v.store(results[query * vectors + at], out, at)
    return f
