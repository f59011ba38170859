"""What a measurement ran on, for printing beside it."""

from __future__ import annotations

import platform
import resource
import sys
from dataclasses import dataclass

import psutil
import torch


@dataclass(frozen=True, slots=True)
class Machine:
    """Hardware and software of a measurement."""

    processor: str
    cores: int
    memory_bytes: int
    threads: int
    python: str
    torch: str


def describe_machine() -> Machine:
    """The machine that this process runs on."""
    return Machine(
        processor=platform.processor() or platform.machine(),
        cores=psutil.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        threads=torch.get_num_threads(),
        python=platform.python_version(),
        torch=torch.__version__,
    )


def peak_resident_bytes() -> int:
    """Largest resident size of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes there, kibibytes elsewhere
