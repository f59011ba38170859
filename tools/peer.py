"""`python -m tools.peer build`: llama.cpp for this processor, from the sources inside `llama-cpp-python`.

Wheels of llama.cpp hold code for old processors only, which makes no fair peer. The source package is fetched with
`pip`, and built once with the instructions that this processor has, into the project's cache folder.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gamaneh.errors import GamanehError, InvalidOption
from gamaneh.models.fetch import cache_folder

SOURCE_PACKAGE = "llama-cpp-python==0.3.36"
LLAMA = Path("vendor/llama.cpp")
PROGRAMS = ("llama-server", "llama-bench", "llama-batched-bench", "llama-perplexity")

INSTRUCTIONS = {
    "GGML_AVX2": "avx2",
    "GGML_FMA": "fma",
    "GGML_F16C": "f16c",
    "GGML_BMI2": "bmi2",
    "GGML_AVX512": "avx512f",
    "GGML_AVX512_VNNI": "avx512_vnni",
    "GGML_AVX512_BF16": "avx512_bf16",
}
"""Option of the build -> the processor's flag that allows it. Its AMX code is left out: it ends with an illegal
instruction on the machine that this was made on."""

FIXED = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=OFF",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_TOOLS=ON",
    "-DLLAMA_BUILD_SERVER=ON",
)
LEAST_COMPILER = 12
"""Oldest GCC whose AVX-512 bfloat16 code llama.cpp is built with here."""

EXIT_ERROR = 2


@dataclass(frozen=True, slots=True)
class Peer:
    """A built llama.cpp.

    Args:
        folder: holds the programs.
        options: of its build.
    """

    folder: Path
    options: tuple[str, ...]

    @property
    def missing(self) -> list[str]:
        """Programs that are still to be built."""
        return [name for name in PROGRAMS if not (self.folder / name).exists()]

    def program(self, name: str) -> Path:
        """Path of one of `PROGRAMS`.

        Raises:
            InvalidOption: it was not built.
        """
        if name in self.missing:
            raise InvalidOption(name, "must be built first, with `python -m tools.peer build`", str(self.folder))
        return self.folder / name


def processor_flags(text: str | None = None) -> frozenset[str]:
    """Names of the instruction sets of this processor; empty where they are not known.

    Args:
        text: of `/proc/cpuinfo`; None reads it.
    """
    if text is None:
        path = Path("/proc/cpuinfo")
        text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = (line.partition(":") for line in text.splitlines())
    return next((frozenset(value.split()) for name, _, value in lines if name.strip() == "flags"), frozenset())


def build_options(flags: frozenset[str], machine: str | None = None) -> tuple[str, ...]:
    """Options of CMake: everything that the processor has, and nothing that it has not."""
    if (machine or platform.machine()) not in ("x86_64", "AMD64"):
        return (*(option for option in FIXED if option != "-DGGML_NATIVE=OFF"), "-DGGML_NATIVE=ON")
    return (*FIXED, *(f"-D{name}={'ON' if flag in flags else 'OFF'}" for name, flag in INSTRUCTIONS.items()))


def find_peer(cache: Path | None = None) -> Peer:
    """Where the peer of this processor is, or is to be."""
    options = build_options(processor_flags())
    key = hashlib.sha256("\n".join((SOURCE_PACKAGE, *options)).encode()).hexdigest()[:12]
    return Peer(cache_folder(cache) / "peers" / f"llama.cpp-{SOURCE_PACKAGE.rpartition('=')[2]}-{key}", options)


def build(cache: Path | None = None) -> Peer:
    """Fetch and compile what is missing of the peer; progress goes to standard error.

    Raises:
        GamanehError: a step failed; its output stands above.
    """
    peer = find_peer(cache)
    missing = peer.missing
    if not missing:
        return peer
    work = peer.folder.with_name(f".{peer.folder.name}.work")
    work.mkdir(parents=True, exist_ok=True)
    source = _fetch(work) / LLAMA
    made = work / "made"
    generator = ("-G", "Ninja") if shutil.which("ninja", path=_search_path()) else ()
    _run("cmake", "-S", str(source), "-B", str(made), *generator, *_compiler(), *peer.options)
    jobs = str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    _run("cmake", "--build", str(made), "--config", "Release", "-j", jobs, "--target", *missing)
    peer.folder.mkdir(parents=True, exist_ok=True)
    for name in missing:
        shutil.copy2(made / "bin" / name, peer.folder / name)
    (peer.folder / "options.txt").write_text("\n".join((SOURCE_PACKAGE, *peer.options)) + "\n", encoding="utf-8")
    shutil.rmtree(work)
    return peer


def main(arguments: Sequence[str] | None = None) -> int:
    """Build, or say where it is; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.peer", description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["build", "where"], help="make it, or print where it is")
    parser.add_argument("--cache", type=Path, help="folder of the cache (default $GAMANEH_CACHE or ~/.cache/gamaneh)")
    options = parser.parse_args(arguments)
    try:
        peer = build(options.cache) if options.what == "build" else find_peer(options.cache)
    except GamanehError as error:
        print(f"gamaneh: {error}", file=sys.stderr)
        return EXIT_ERROR
    print(peer.folder)
    return 0


def _fetch(work: Path) -> Path:
    """The unpacked source package."""
    unpacked = work / "source"
    if not (unpacked / LLAMA / "CMakeLists.txt").exists():
        shutil.rmtree(unpacked, ignore_errors=True)
        name = SOURCE_PACKAGE.partition("=")[0]
        _run(sys.executable, "-m", "pip", "download", "--no-binary", name, "--no-deps", "-d", str(work), SOURCE_PACKAGE)
        (archive,) = work.glob("llama_cpp_python-*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(work / "fresh", filter="data")
        (root,) = (work / "fresh").iterdir()
        root.rename(unpacked)
    return unpacked


def _compiler() -> Sequence[str]:
    """A newer GCC beside the usual one, where the usual one is too old."""
    names = ((f"gcc-{number}", f"g++-{number}") for number in range(16, LEAST_COMPILER - 1, -1))
    found = next((pair for pair in names if all(map(shutil.which, pair))), None)
    return () if found is None else (f"-DCMAKE_C_COMPILER={found[0]}", f"-DCMAKE_CXX_COMPILER={found[1]}")


def _run(*command: str) -> None:
    """One step, whose output goes to standard error.

    Raises:
        GamanehError: it is not installed, or failed.
    """
    print(f"$ {' '.join(command)}", file=sys.stderr, flush=True)
    environment = {**os.environ, "PATH": _search_path()}
    program = shutil.which(command[0], path=environment["PATH"]) or command[0]
    try:
        code = subprocess.run([program, *command[1:]], stdout=sys.stderr, check=False, env=environment).returncode
    except OSError as error:
        raise GamanehError(f"{command[0]} must be installed ({error})") from error
    if code:
        raise GamanehError(f"{command[0]} must end with exit code 0, got {code}")


def _search_path() -> str:
    """Return where programs are looked for: first beside Python, where `pip install cmake ninja` puts them."""
    return os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))


if __name__ == "__main__":
    sys.exit(main())
