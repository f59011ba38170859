"""What a measurement ran on, for printing beside it."""

from __future__ import annotations

import platform
from dataclasses import dataclass

import psutil
import torch

from gamaneh.engine.calibration import processor_name


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
        processor=processor_name(),
        cores=psutil.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        threads=torch.get_num_threads(),
        python=platform.python_version(),
        torch=torch.__version__,
    )
