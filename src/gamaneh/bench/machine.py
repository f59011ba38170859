"""What a measurement ran on, for printing beside it."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

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
        processor=_processor(),
        cores=psutil.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        threads=torch.get_num_threads(),
        python=platform.python_version(),
        torch=torch.__version__,
    )


def _processor() -> str:
    """The processor's model name; `platform` knows it on some systems only."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())
