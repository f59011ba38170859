"""Memory of this process and of its accelerator."""

from __future__ import annotations

import resource
import sys

import psutil
import torch


def peak_resident_bytes() -> int:
    """Largest resident size of this process so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes there, kibibytes elsewhere


def private_bytes() -> int:
    """What of the resident size is this process's own: without files, and without keys and values.

    A cache of keys and values takes its pages as they are written, up to its size, which is no leak. Where the system
    does not tell them apart it is the resident size.
    """
    memory = psutil.Process().memory_info()
    return int(memory.rss - getattr(memory, "shared", 0))


def peak_device_bytes() -> int:
    """Most memory of the accelerator that tensors of this process have held; 0 where none is in use."""
    return torch.cuda.max_memory_allocated()
