"""What Numba does not offer: calls through addresses, numbers in memory, atomic counters, 16-bit floats."""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from gamaneh.backends.compiled.jit import inner

_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()


def _caller(kinds: str) -> Any:
    """An intrinsic that calls the function at its first argument: `i` is a 64-bit integer or pointer, `f` a float."""
    numba_types = [types.float32 if kind == "f" else types.int64 for kind in kinds]
    llvm_types = [_F32 if kind == "f" else _I64 for kind in kinds]

    def call(typingctx, address, *args):
        def codegen(context, builder, signature, values):
            kind = ir.FunctionType(ir.VoidType(), llvm_types)
            builder.call(builder.inttoptr(values[0], kind.as_pointer()), values[1:])
            return context.get_dummy_value()

        return types.void(types.int64, *numba_types), codegen

    names = ", ".join(f"a{at}" for at in range(len(kinds)))
    scope: dict[str, Any] = {"call": call}
    exec(f"def named(typingctx, address, {names}): return call(typingctx, address, {names})", scope)
    return intrinsic(scope["named"])


call_3, call_4, call_6, call_10, call_12 = (_caller("i" * count) for count in (3, 4, 6, 10, 12))
call_norm = _caller("iiffii")


@intrinsic
def add_atomic(typingctx, address, value):
    """Add to the 64-bit counter at an address, and return what it was."""

    def codegen(context, builder, signature, args):
        return builder.atomic_rmw("add", builder.inttoptr(args[0], _I64.as_pointer()), args[1], "acq_rel")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def load_atomic(typingctx, address):
    def codegen(context, builder, signature, args):
        return builder.load_atomic(builder.inttoptr(args[0], _I64.as_pointer()), "acquire", 8)

    return types.int64(types.int64), codegen


@intrinsic
def clock(typingctx):
    """The processor's cycle counter, where a program may read one; else 0."""

    def codegen(context, builder, signature, args):
        if not builder.module.triple.startswith("x86_64"):
            return ir.Constant(_I64, 0)
        kind = ir.FunctionType(_I64, [])
        return builder.call(builder.module.declare_intrinsic("llvm.readcyclecounter", (), kind), [])

    return types.int64(), codegen


@intrinsic
def store(typingctx, address, value):
    """Store a 64-bit number."""

    def codegen(context, builder, signature, args):
        builder.store(args[1], builder.inttoptr(args[0], _I64.as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def give_way(typingctx):
    """Let another thread run on this core: `sched_yield` of the C library."""

    def codegen(context, builder, signature, args):
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(_I32, []), "sched_yield")
        return builder.call(function, [])

    return types.int32(), codegen


@intrinsic
def _float_pointer(typingctx, address):
    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], _F32.as_pointer())

    return types.CPointer(types.float32)(types.int64), codegen


@inner
def floats(address, count):
    """View `count` float32 numbers at an address."""
    return numba.carray(_float_pointer(address), (count,))


@intrinsic
def store_half(typingctx, address, value):
    """Round a float32 to float16 in memory."""

    def codegen(context, builder, signature, args):
        half = ir.HalfType()
        builder.store(builder.fptrunc(args[1], half), builder.inttoptr(args[0], half.as_pointer()), align=2)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32), codegen


@intrinsic
def load_half(typingctx, address):
    """The float16 in memory, as float32."""

    def codegen(context, builder, signature, args):
        half = ir.HalfType()
        found = builder.load(builder.inttoptr(args[0], half.as_pointer()), align=2)
        return builder.fpext(found, _F32)

    return types.float32(types.int64), codegen


@intrinsic
def nearest(typingctx, value):
    """The nearest whole number, ties to even: unlike `np.rint` it is an instruction, and works on vectors too."""

    def codegen(context, builder, signature, args):
        return builder.call(builder.module.declare_intrinsic("llvm.rint", [_F32]), args)

    return types.float32(types.float32), codegen
