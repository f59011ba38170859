"""Memory of this process and of its accelerator."""

from __future__ import annotations

import resource
import sys

import torch


def peak_resident_bytes() -> int:
    """Largest resident size of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes there, kibibytes elsewhere


def peak_device_bytes() -> int:
    """Most memory of the accelerator that tensors of this process have held; 0 where none is in use."""
    return torch.cuda.max_memory_allocated()
