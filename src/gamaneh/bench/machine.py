"""What a measurement ran on, for printing beside it."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path

import psutil
import torch

from gamaneh.bench.result import Machine
from gamaneh.engine.calibration import processor_name

_CHUNK = 1 << 20
_WEIGHTS = (".safetensors", ".gguf")


def describe_machine() -> Machine:
    """Return the machine that this process runs on."""
    return Machine(
        processor=processor_name(),
        cores=psutil.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        threads=torch.get_num_threads(),
        python=platform.python_version(),
        torch=torch.__version__,
    )


def hash_model(path: Path) -> str | None:
    """Return the SHA-256 of a model's weights: a file, or a folder's weight files in order; None without any."""
    files = [path] if path.is_file() else sorted(each for each in path.glob("*") if each.suffix in _WEIGHTS)
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest() if files else None
