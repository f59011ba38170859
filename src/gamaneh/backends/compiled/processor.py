"""What the processor can do, and which of its instructions the kernels use."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from llvmlite import binding

from gamaneh.errors import InvalidOption


@dataclass(frozen=True, slots=True)
class Target:
    """A processor to compile for.

    Args:
        name: one of `INSTRUCTION_SETS`.
        width: 32-bit numbers in one vector.
        rows: row counts of the product kernels, descending.
        tiles: tiles of 16 outputs that a product kernel computes at once.
        foreign: it is not this machine: code is only written as text.
    """

    name: str
    triple: str
    cpu: str
    features: str
    width: int
    rows: tuple[int, ...]
    foreign: bool = False


_NEEDS = {
    "avx512": ("avx512f", "avx512bw", "avx512vl", "avx512vnni", "f16c"),
    "avxvnni": ("avx2", "fma", "f16c", "avxvnni"),
    "avx2": ("avx2", "fma", "f16c"),
    "neon": ("dotprod",),
}

INSTRUCTION_SETS = tuple(_NEEDS)
"""Best first."""

_AVX512 = (
    "avx512f avx512bw avx512vl avx512dq avx512cd avx512vnni avx512bf16 avx512fp16 avx512vbmi avx512vbmi2 "
    "avx512ifma avx512bitalg avx512vpopcntdq avx512vp2intersect avx10.1 avx10.1-512 avx10.2"
)


@cache
def available() -> tuple[str, ...]:
    """Return the instruction sets that this processor has, best first; empty where the kernels cannot run."""
    features = binding.get_host_cpu_features()
    return tuple(name for name, needs in _NEEDS.items() if all(features.get(need) for need in needs))


def host(name: str = "auto") -> Target:
    """Return this machine as a target.

    Args:
        name: an instruction set to keep to, or `auto`: the best.

    Raises:
        InvalidOption: the processor does not have it.
    """
    have = available()
    if not have or name not in ("auto", *have):
        raise InvalidOption("instructions", f"must be auto or one of {', '.join(have) or 'none here'}", name)
    chosen = have[0] if name == "auto" else name
    features = dict(binding.get_host_cpu_features())
    cpu = str(binding.get_host_cpu_name())
    if chosen != "avx512" and "avx512" in have:
        cpu = "x86-64-v3"
        features = {key: on and key not in _AVX512.split() for key, on in features.items()}
    if chosen == "avx2":
        features["avxvnni"] = False
    text = ",".join(f"{'+' if on else '-'}{key}" for key, on in sorted(features.items()))
    width, rows = _SHAPES[chosen]
    return Target(chosen, str(binding.get_process_triple()), cpu, text, width, rows)


def arm() -> Target:
    """Return a 64-bit Arm processor with dot products, to read the code for it."""
    width, rows = _SHAPES["neon"]
    return Target("neon", "aarch64-unknown-linux-gnu", "neoverse-n1", "+dotprod,+fullfp16", width, rows, foreign=True)


_SHAPES: dict[str, tuple[int, tuple[int, ...]]] = {
    "avx512": (16, (8, 4, 2, 1)),
    "avxvnni": (8, (2, 1)),
    "avx2": (8, (2, 1)),
    "neon": (4, (2, 1)),
}
