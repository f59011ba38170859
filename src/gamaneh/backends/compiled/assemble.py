"""Text of LLVM IR to machine code, kept on disk between runs."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from llvmlite import binding

from gamaneh.backends.compiled.processor import Target

VERSION = 1
"""Part of the names on disk; raised when the meaning of a kernel's arguments changes."""


class IrFunction:
    """Lines of one function, in SSA form.

    Args:
        params: names and types of the arguments.
    """

    def __init__(self, name: str, params: Sequence[tuple[str, str]]) -> None:
        self.name, self.params = name, params
        self.lines: list[str] = []
        self.declared: set[str] = set()
        self._count = 0
        self.block = "entry"

    def op(self, text: str) -> str:
        """Append `%n = text` and return `%n`."""
        self._count += 1
        self.lines.append(f"  %v{self._count} = {text}")
        return f"%v{self._count}"

    def do(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def label(self, name: str) -> None:
        self.lines.append(f"{name}:")
        self.block = name

    def call(self, result: str, name: str, *args: str) -> str:
        """Call an intrinsic; each argument is `type value`."""
        types = ", ".join(arg.rsplit(" ", 1)[0] if "<" not in arg else arg[: arg.index(">") + 1] for arg in args)
        self.declared.add(f"declare {result} @{name}({types})")
        return self.op(f"call {result} @{name}({', '.join(args)})")

    def offset(self, base: str, *terms: str) -> str:
        """Pointer `base` moved by bytes."""
        for term in terms:
            base = self.op(f"getelementptr i8, ptr {base}, i64 {term}")
        return base

    def text(self) -> str:
        params = ", ".join(f"{kind} %{name}" for name, kind in self.params)
        return "\n".join([f"define void @{self.name}({params}) {{", "entry:", *self.lines, "  ret void", "}"])


def module_text(functions: Iterable[IrFunction]) -> str:
    functions = list(functions)
    declared = sorted({line for function in functions for line in function.declared})
    return "\n".join([*declared, *(function.text() for function in functions)]) + "\n"


class Assembler:
    """Compiles functions for one target.

    Args:
        folder: where machine code is kept; None keeps nothing.
    """

    def __init__(self, target: Target, folder: Path | None) -> None:
        _start_llvm()
        self.target, self.folder = target, folder
        self._machine = binding.Target.from_triple(target.triple).create_target_machine(
            cpu=target.cpu,
            features=target.features,
            opt=3,
            reloc="pic" if target.foreign else "default",
            jit=not target.foreign,
        )
        self._engine: binding.ExecutionEngine | None = None

    def assembly(self, functions: Iterable[IrFunction]) -> str:
        """Return the assembly text: for tests and for reading."""
        return str(self._machine.emit_assembly(self._optimised(module_text(functions))))

    def addresses(self, functions: Sequence[IrFunction]) -> Mapping[str, int]:
        """Compile the functions, or find them on disk, and return where they lie in memory."""
        text = module_text(functions)
        code = self._kept(text)
        if self._engine is None:
            empty = binding.parse_assembly(f'target triple = "{self.target.triple}"\n')
            self._engine = binding.create_mcjit_compiler(empty, self._machine)
        self._engine.add_object_file(binding.ObjectFileRef.from_data(code))
        self._engine.finalize_object()
        return {function.name: self._engine.get_function_address(function.name) for function in functions}

    def _kept(self, text: str) -> bytes:
        key = hashlib.sha256(
            "\n".join([str(VERSION), str(binding.llvm_version_info), str(self.target), text]).encode()
        ).hexdigest()
        path = None if self.folder is None else self.folder / f"kernels-{key[:32]}.o"
        if path is not None:
            try:
                return path.read_bytes()
            except OSError:
                pass
        code: bytes = self._machine.emit_object(self._optimised(text))
        if path is not None:
            _write(path, code)
        return code

    def _optimised(self, text: str) -> binding.ModuleRef:
        module = binding.parse_assembly(f'target triple = "{self.target.triple}"\n{text}')
        module.verify()
        options = binding.create_pipeline_tuning_options(speed_level=2)
        options.loop_unrolling = False
        builder = binding.create_pass_builder(self._machine, options)
        builder.getModulePassManager().run(module, builder)
        return module


def _write(path: Path, code: bytes) -> None:
    """Write in one go; another process may do the same. A full or read-only disk costs only the next compilation."""
    try:
        handle, name = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(code)
        Path(name).replace(path)
    except OSError:
        return


_STARTED: list[bool] = []


def _start_llvm() -> None:
    if not _STARTED:
        binding.initialize_all_targets()
        binding.initialize_all_asmprinters()
        _STARTED.append(True)
