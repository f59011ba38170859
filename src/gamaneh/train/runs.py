"""What every training run needs: devices, a folder to go on from, and somebody to tell how it goes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import InitProcessGroupKwargs

from gamaneh.models.loading import choose_device, choose_dtype
from gamaneh.options import Precision
from gamaneh.train.settings import TrainingType

Tick = Callable[[int, int], None]
"""Called with how many are done and how many there are."""

Bar = Callable[[str], AbstractContextManager[Tick]]
"""Opens a progress bar with a title."""

Say = Callable[[str], None]
"""Told in words how it goes."""

LONGEST_WAIT = timedelta(days=7)
"""Processes wait for the first one while it lets the target answer and read, which may take days."""

_MIXED = {"float32": "no", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class Workshop:
    """Where a run takes place.

    Args:
        accelerator: one process, or as many as `accelerate launch` started.
        folder: keeps answers, features and checkpoints, so that a run that was broken off goes on.
    """

    accelerator: Accelerator
    folder: Path
    bar: Bar
    say: Say


def start_accelerator(precision: TrainingType, of_target: Precision, device: str) -> Accelerator:
    """On the device that the target is meant for; with several processes, on one device each.

    Args:
        precision: of the training.
        of_target, device: of the target, as `load` takes them.

    Raises:
        InvalidOption: there is no such type or device.
    """
    chosen = choose_device(device)
    if precision == "auto":
        precision = "bfloat16" if choose_dtype(of_target, chosen) == torch.bfloat16 else "float32"
    AcceleratorState._reset_state(reset_partial_state=True)  # one process may train twice, in different types
    return Accelerator(
        mixed_precision=_MIXED[precision],
        cpu=chosen.type == "cpu",
        kwargs_handlers=[InitProcessGroupKwargs(timeout=LONGEST_WAIT)],
    )


def run_key(*facts: object) -> str:
    """The same for runs with the same facts: such a run goes on where it was broken off."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:12]
