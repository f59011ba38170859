"""Products of a few rows with tiles of weights, written as LLVM IR for each layout and instruction set.

Every output of a row is summed in the same order whatever the number of rows, so that a row's bits do not depend on
the rows beside it:

    y = sum over groups of  scale * x_scale * (codes . x - zero * sum x)  -  minimum * (x_scale * sum x)

The dot products of a group are exact, in integers. A matrix lies in memory in the order in which it is read:

    matrix   tile 0 | tile 1 | ...            16 outputs each
    tile     record 0 | record 1 | ...        all inputs of these outputs
    record   codes of group 0 | 1 | ... | scales and minima by group | super-scales | super-minima
    group    32 inputs, as vectors of 64 bytes

                    output 0      output 1            output 15
    4-bit codes   [ i0 i1 i2 i3 | i0 i1 i2 i3 | ... | i0 i1 i2 i3 ]   low halves of the bytes: inputs i0 to i3,
                  [ i8 ...                                        ]   high halves: i4 to i7; four such vectors
    8-bit codes   [ i0 i1 i2 i3 | i0 i1 i2 i3 | ... | i0 i1 i2 i3 ]   eight vectors, of inputs i0, i4, i8, ...
    5 and 6 bits  four vectors as for 4 bits, then one or two with the bits above

so that one vector of codes and four activations, repeated in all lanes, are one dot product of 4 inputs for each of
16 outputs. Activations are records of 64 bytes for 32 inputs: codes, scale, scale * sum, and what dot products start
from (`X_STARTS`).

At these speeds memory sets the pace. The processor does not read ahead far enough on its own, so a kernel asks for the
bytes it needs some records later, a few lines with every group.
"""

from __future__ import annotations

from dataclasses import dataclass

from gamaneh.backends.compiled.assemble import IrFunction
from gamaneh.backends.compiled.processor import Target

TILE = 16
"""Outputs side by side in one tile."""

TILES = 2
"""Tiles that a kernel computes, one after the other."""

LINE = 64
"""Bytes that memory is read in."""

AHEAD_1, AHEAD = 4096, 8192
"""Bytes between what is computed and what is fetched into the cache: of kernels of one row, and of more."""

Cell = tuple[int, int]
"""A row, and a chunk of the tile: as many outputs as one vector holds."""

GROUP = 32
"""Inputs that share one scale of the activations."""

X_RECORD = 64
"""Bytes of one group of activations: 32 codes, scale, scale * sum, then starts of dot products (int32)."""

X_SCALE, X_SUM = 32, 36

X_STARTS = {8: 40, 16: 44, 128: 48}
"""Where -zero * sum x stands, from which the dot product of a group starts, by the code of zero."""

X_HALF_STARTS = {32: (52, 56)}
"""The same for each half of a group."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a product kernel must know of a layout.

    A record holds `per_record` groups of 32 inputs for 16 outputs: codes of each group, then its scales,
    then its minima; two-level kinds end with the super-scales and super-minima.

    Args:
        bits: of a code; 0 for floats.
        zero: code of the number zero.
        halves: scales are for 16 inputs.
        two_level: scales are 8-bit integers times float16 super-scales; else they are float16.
        signed: 8-bit scales are signed.
        minima: there are minima.
        floats: `float32`, `bfloat16` or `float16` where `bits` is 0.
    """

    bits: int = 0
    zero: int = 0
    halves: bool = False
    two_level: bool = False
    signed: bool = False
    minima: bool = False
    floats: str = ""

    @property
    def name(self) -> str:
        if self.floats:
            return self.floats
        marks = ("h" if self.halves else "") + ("t" if self.two_level else "") + ("s" if self.signed else "")
        return f"int{self.bits}z{self.zero}{marks}{'m' if self.minima else ''}"

    @property
    def per_record(self) -> int:
        """Groups of 32 in a record; for floats: inputs."""
        return 1 if self.floats else 8 if self.two_level else 2

    @property
    def code_bytes(self) -> int:
        """Codes of one group of 32 inputs of 16 outputs."""
        return 64 * self.bits

    @property
    def scale_bytes(self) -> int:
        """Scales of one group, minima aside."""
        return 16 * (1 if self.two_level else 2) * (2 if self.halves else 1)

    @property
    def group_scale_bytes(self) -> int:
        return self.scale_bytes * (2 if self.minima else 1)

    @property
    def record_bytes(self) -> int:
        if self.floats:
            return 16 * (4 if self.floats == "float32" else 2)
        supers = 32 * (2 if self.minima else 1) if self.two_level else 0
        whole = self.per_record * (self.code_bytes + self.group_scale_bytes) + supers
        return -(-whole // 64) * 64

    @property
    def scales_at(self) -> int:
        return self.per_record * self.code_bytes

    @property
    def supers_at(self) -> int:
        return self.scales_at + self.per_record * self.group_scale_bytes

    @property
    def record_columns(self) -> int:
        """Inputs that a record covers."""
        return 1 if self.floats else GROUP * self.per_record


def product(kind: Kind, rows: int, target: Target) -> IrFunction:
    """Return the kernel for so many rows of activations times `TILES` tiles.

    Arguments of the function: first tile, bytes of a tile, activations, bytes of a row of them, records,
    output (float32 `[rows, TILES * 16]`).
    """
    name = f"product_{kind.name}_{rows}"
    params = [("w", "ptr"), ("tile", "i64"), ("x", "ptr"), ("stride", "i64"), ("records", "i64"), ("out", "ptr")]
    function = IrFunction(name, params)
    (_FloatProduct if kind.floats else _IntegerProduct)(function, kind, rows, target).write()
    return function


class _Product:
    """Shared by the two bodies: the loops over tiles and records, with float accumulators."""

    def __init__(self, function: IrFunction, kind: Kind, rows: int, target: Target) -> None:
        self.f, self.kind, self.rows, self.width, self.target = function, kind, rows, target.width, target
        self.chunks = TILE // target.width
        self.cells = [(r, c) for r in range(rows) for c in range(self.chunks)]
        self.floats, self.ints = f"<{self.width} x float>", f"<{self.width} x i32>"
        self.bytes, self.halves = f"<{4 * self.width} x i8>", f"<{self.width} x half>"

    def write(self) -> None:
        f = self.f
        row_bases = ["%x"]
        for _ in range(1, self.rows):
            row_bases.append(f.offset(row_bases[-1], "%stride"))
        f.do("br label %tiles")
        f.label("tiles")
        f.do("%t = phi i64 [ 0, %entry ], [ %next_t, %done ]")
        tile = f.offset("%w", f.op("mul i64 %t, %tile"))
        out = f.offset("%out", f.op(f"mul i64 %t, {4 * TILE}"))
        f.do("br label %loop")
        f.label("loop")
        i = f.op("phi i64 [ 0, %tiles ], [ %next, %loop ]")
        head = len(f.lines)
        base = f.offset(tile, f.op(f"mul i64 {i}, {self.kind.record_bytes}"))
        x_at = f.op(f"mul i64 {i}, {self.x_bytes}")
        olds = {cell: f"%old_{cell[0]}_{cell[1]}" for cell in self.cells}
        xs = [f.offset(row, x_at) for row in row_bases]
        news = self.body(base, xs, dict(olds))
        f.lines[head:head] = [
            f"  {olds[cell]} = phi {self.floats} [ zeroinitializer, %tiles ], [ {news[cell]}, %loop ]"
            for cell in self.cells
        ]
        f.do(f"%next = add i64 {i}, 1")
        f.do("%more = icmp slt i64 %next, %records")
        f.do("br i1 %more, label %loop, label %done")
        f.label("done")
        for (r, c), value in news.items():
            place = f.offset(out, str(4 * (TILE * TILES * r + c * self.width)))
            f.do(f"store {self.floats} {value}, ptr {place}, align 4")
        f.do("%next_t = add i64 %t, 1")
        f.do(f"%more_t = icmp slt i64 %next_t, {TILES}")
        f.do("br i1 %more_t, label %tiles, label %end")
        f.label("end")

    def fetch_ahead(self, base: str, part: int, parts: int) -> None:
        """Ask for one of so many parts of a record that comes later: the processor would see it coming too late.

        The compiler must leave these requests where they are. Many at once keep other reads waiting, and nothing is
        computed meanwhile; nor may it unpack groups ahead, for want of registers.
        """
        f, lines = self.f, -(-self.kind.record_bytes // LINE)
        f.do('call void asm sideeffect "", "~{memory}"()')
        for line in range(part * lines // parts, (part + 1) * lines // parts):
            place = f.offset(base, str((AHEAD_1 if self.rows == 1 else AHEAD) + LINE * line))
            f.declared.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
            f.do(f"call void @llvm.prefetch.p0(ptr {place}, i32 0, i32 3, i32 1)")

    @property
    def x_bytes(self) -> int:
        raise NotImplementedError

    def body(self, base: str, xs: list[str], acc: dict[Cell, str]) -> dict[Cell, str]:
        """Return the sums with one record more."""
        raise NotImplementedError

    def fma(self, a: str, b: str, c: str) -> str:
        v = self.floats
        return self.f.call(v, f"llvm.fma.v{self.width}f32", f"{v} {a}", f"{v} {b}", f"{v} {c}")

    def spread(self, value: str, kind: str) -> str:
        """One number in all lanes."""
        vec = f"<{self.width} x {kind}>"
        first = self.f.op(f"insertelement {vec} poison, {kind} {value}, i32 0")
        return self.f.op(f"shufflevector {vec} {first}, {vec} poison, <{self.width} x i32> zeroinitializer")

    def spread_at(self, base: str, offset: int, kind: str) -> str:
        place = self.f.offset(base, str(offset))
        return self.spread(self.f.op(f"load {kind}, ptr {place}, align 4"), kind)

    def all(self, value: int) -> str:
        return "<" + ", ".join([f"i32 {value}"] * self.width) + ">"


class _FloatProduct(_Product):
    @property
    def x_bytes(self) -> int:
        return 4

    def body(self, base: str, xs: list[str], acc: dict[Cell, str]) -> dict[Cell, str]:
        self.fetch_ahead(base, 0, 1)
        weights = [self._weight(base, c) for c in range(self.chunks)]
        spread = [self.spread_at(x, 0, "float") for x in xs]
        return {(r, c): self.fma(weights[c], spread[r], old) for (r, c), old in acc.items()}

    def _weight(self, base: str, chunk: int) -> str:
        f, floats = self.f, self.kind.floats
        size = self.width * (4 if floats == "float32" else 2)
        place = f.offset(base, str(chunk * size))
        if floats == "float32":
            return f.op(f"load {self.floats}, ptr {place}, align {size}")
        if floats == "float16":
            half = f.op(f"load {self.halves}, ptr {place}, align {size}")
            return f.op(f"fpext {self.halves} {half} to {self.floats}")
        short = f.op(f"load <{self.width} x i16>, ptr {place}, align {size}")
        wide = f.op(f"zext <{self.width} x i16> {short} to {self.ints}")
        return f.op(f"bitcast {self.ints} {f.op(f'shl {self.ints} {wide}, {self.all(16)}')} to {self.floats}")


class _IntegerProduct(_Product):
    @property
    def x_bytes(self) -> int:
        return X_RECORD * self.kind.per_record

    def body(self, base: str, xs: list[str], acc: dict[Cell, str]) -> dict[Cell, str]:
        kind, count = self.kind, self.kind.per_record
        supers = self._supers(base)
        for group in range(count):
            self.fetch_ahead(base, group, count)
            sums = self._dots(base, xs, group)
            scales = self._scales(base, group, supers)
            for r, x in enumerate(xs):
                x_scale = self.spread_at(x, group * X_RECORD + X_SCALE, "float")
                x_sum = self.spread_at(x, group * X_RECORD + X_SUM, "float") if kind.minima else ""
                for c in range(self.chunks):
                    acc[r, c] = self._add(acc[r, c], sums[r, c], scales, c, x_scale, x_sum)
        return acc

    def _add(
        self, acc: str, sums: list[str], scales: tuple[list[list[str]], list[str]], c: int, x_scale: str, x_sum: str
    ) -> str:
        f, v = self.f, self.floats
        steps = [f.op(f"sitofp {self.ints} {value} to {v}") for value in sums]
        if len(steps) == 1:
            step = f.op(f"fmul {v} {steps[0]}, {x_scale}")
            acc = self.fma(step, scales[0][0][c], acc)
        else:
            first = f.op(f"fmul {v} {steps[0]}, {scales[0][0][c]}")
            acc = self.fma(self.fma(steps[1], scales[0][1][c], first), x_scale, acc)
        # The layout stores minima with their sign turned.
        return self.fma(x_sum, scales[1][c], acc) if x_sum else acc

    def _supers(self, base: str) -> tuple[list[str], list[str]]:
        """Super-scales and super-minima by chunk."""
        if not self.kind.two_level:
            return [], []
        at = self.kind.supers_at
        scales = [self._half(base, at + 2 * c * self.width) for c in range(self.chunks)]
        if not self.kind.minima:
            return scales, []
        return scales, [self._half(base, at + 32 + 2 * c * self.width) for c in range(self.chunks)]

    def _scales(self, base: str, group: int, supers: tuple[list[str], list[str]]) -> tuple[list[list[str]], list[str]]:
        """Scales by half and chunk, and minima by chunk, of one group."""
        kind = self.kind
        at = kind.scales_at + group * kind.group_scale_bytes
        size = 1 if kind.two_level else 2
        scales = [
            [self._scale(base, at + half * 16 * size, c, supers[0]) for c in range(self.chunks)]
            for half in range(2 if kind.halves else 1)
        ]
        low = at + kind.scale_bytes
        return scales, [self._scale(base, low, c, supers[1]) for c in range(self.chunks)] if kind.minima else []

    def _scale(self, base: str, at: int, chunk: int, supers: list[str]) -> str:
        f = self.f
        if not self.kind.two_level:
            return self._half(base, at + 2 * chunk * self.width)
        place = f.offset(base, str(at + chunk * self.width))
        small = f.op(f"load <{self.width} x i8>, ptr {place}, align {self.width}")
        wide = f.op(f"{'sext' if self.kind.signed else 'zext'} <{self.width} x i8> {small} to {self.ints}")
        number = f.op(f"sitofp {self.ints} {wide} to {self.floats}")
        return f.op(f"fmul {self.floats} {number}, {supers[chunk]}")

    def _half(self, base: str, at: int) -> str:
        place = self.f.offset(base, str(at))
        half = self.f.op(f"load {self.halves}, ptr {place}, align {2 * self.width}")
        return self.f.op(f"fpext {self.halves} {half} to {self.floats}")

    def _dots(self, base: str, xs: list[str], group: int) -> dict[Cell, list[str]]:
        """Integer sums of a group, one per half where scales are for 16 inputs."""
        codes = [self._codes(base, group, c) for c in range(self.chunks)]
        parts = 2 if self.kind.halves else 1
        found: dict[Cell, list[str]] = {cell: [] for cell in self.cells}
        for part in range(parts):
            starts = [self._start(x, group, part) for x in xs]
            dots = {(r, c): _DOTS[self.target.name](self, starts[r]) for r, c in found}
            for quad in range(part * 8 // parts, (part + 1) * 8 // parts):
                for r, x in enumerate(xs):
                    four = self.spread_at(x, group * X_RECORD + 4 * quad, "i32")
                    for c in range(self.chunks):
                        dots[r, c].add(codes[c][quad], four)
            for cell, dot in dots.items():
                found[cell].append(dot.total())
        return found

    def _start(self, x: str, group: int, part: int) -> str:
        """-zero * sum x, from which the dot product starts."""
        zero = 0 if self.target.name in ("neon", "avx2") and self.kind.bits == 8 else self.kind.zero
        if not zero:
            return "zeroinitializer"
        place = X_HALF_STARTS[zero][part] if self.kind.halves else X_STARTS[zero]
        return self.spread_at(x, group * X_RECORD + place, "i32")

    def _codes(self, base: str, group: int, chunk: int) -> list[str]:
        """Codes of 4 inputs each, eight times, as 32-bit lanes of four bytes."""
        bits, f, v = self.kind.bits, self.f, self.ints
        at = group * self.kind.code_bytes + chunk * 4 * self.width

        def load(vector: int) -> str:
            return f.op(f"load {v}, ptr {f.offset(base, str(at + 64 * vector))}, align {4 * self.width}")

        if bits == 8:
            return [load(quad) for quad in range(8)]
        nibble = self.all(0x0F0F0F0F)
        codes = []
        for vector in range(4):
            packed = load(vector)
            codes.append(f.op(f"and {v} {packed}, {nibble}"))
            codes.append(f.op(f"and {v} {f.op(f'lshr {v} {packed}, {self.all(4)}')}, {nibble}"))
        if bits == 4:
            return codes
        high = bits - 4
        planes = [load(4 + plane) for plane in range(high)]
        mask = self.all(0x10101010 * (2**high - 1))
        per_plane = 8 // high
        for quad in range(8):
            plane, start = planes[quad // per_plane], high * (quad % per_plane)
            moved = plane
            if start < 4:
                moved = f.op(f"shl {v} {plane}, {self.all(4 - start)}")
            elif start > 4:
                moved = f.op(f"lshr {v} {plane}, {self.all(start - 4)}")
            codes[quad] = f.op(f"or {v} {codes[quad]}, {f.op(f'and {v} {moved}, {mask}')}")
        return codes


class _Dot:
    """A running integer dot product of unsigned codes with signed activations."""

    def __init__(self, owner: _IntegerProduct, start: str) -> None:
        self.owner, self.sum = owner, start

    def add(self, codes: str, four: str) -> None:
        raise NotImplementedError

    def total(self) -> str:
        return self.sum

    def as_bytes(self, value: str) -> str:
        return self.owner.f.op(f"bitcast {self.owner.ints} {value} to {self.owner.bytes}")


class _VnniDot(_Dot):
    """`vpdpbusd`, 512 or 256 bits wide."""

    def add(self, codes: str, four: str) -> None:
        owner = self.owner
        a, b = self.as_bytes(codes), self.as_bytes(four)
        name = f"llvm.x86.avx512.vpdpbusd.{32 * owner.width}"
        self.sum = owner.f.call(
            owner.ints, name, f"{owner.ints} {self.sum}", f"{owner.bytes} {a}", f"{owner.bytes} {b}"
        )


class _Avx2Dot(_Dot):
    """`vpmaddubsw` adds pairs in 16 bits with saturation: sums are widened before they could reach it."""

    def __init__(self, owner: _IntegerProduct, start: str) -> None:
        super().__init__(owner, start)
        self.short, self.pending = "", 0
        bits = owner.kind.bits
        # A pair is at most 2 * (2**bits - 1) * 127; signed 8-bit codes reach 2 * 128 * 127.
        self.most = 1 if bits == 8 else 32767 // (2 * (2**bits - 1) * 127)

    def add(self, codes: str, four: str) -> None:
        f = self.owner.f
        a, b = self.as_bytes(codes), self.as_bytes(four)
        if self.owner.kind.bits == 8:
            top = "<" + ", ".join(["i8 -128"] * 32) + ">"
            signed = f.op(f"xor <32 x i8> {a}, {top}")
            a = f.call("<32 x i8>", "llvm.abs.v32i8", f"<32 x i8> {signed}", "i1 false")
            b = f.call("<32 x i8>", "llvm.x86.avx2.psign.b", f"<32 x i8> {b}", f"<32 x i8> {signed}")
        pair = f.call("<16 x i16>", "llvm.x86.avx2.pmadd.ub.sw", f"<32 x i8> {a}", f"<32 x i8> {b}")
        self.short = f.op(f"add <16 x i16> {self.short}, {pair}") if self.pending else pair
        self.pending += 1
        if self.pending == self.most:
            self._widen()

    def total(self) -> str:
        if self.pending:
            self._widen()
        return self.sum

    def _widen(self) -> None:
        f, ones = self.owner.f, "<" + ", ".join(["i16 1"] * 16) + ">"
        wide = f.call("<8 x i32>", "llvm.x86.avx2.pmadd.wd", f"<16 x i16> {self.short}", f"<16 x i16> {ones}")
        self.sum = f.op(f"add <8 x i32> {self.sum}, {wide}")
        self.short, self.pending = "", 0


class _NeonDot(_Dot):
    """`sdot`: codes of up to 6 bits are signed bytes as they are, those of 8 bits once 128 is taken off."""

    def add(self, codes: str, four: str) -> None:
        f = self.owner.f
        a, b = self.as_bytes(codes), self.as_bytes(four)
        if self.owner.kind.bits == 8:
            a = f.op(f"xor <16 x i8> {a}, <{', '.join(['i8 -128'] * 16)}>")
        self.sum = f.call(
            "<4 x i32>",
            "llvm.aarch64.neon.sdot.v4i32.v16i8",
            f"<4 x i32> {self.sum}",
            f"<16 x i8> {a}",
            f"<16 x i8> {b}",
        )


_DOTS: dict[str, type[_Dot]] = {"avx512": _VnniDot, "avxvnni": _VnniDot, "avx2": _Avx2Dot, "neon": _NeonDot}
