"""What steps cost on this machine, measured when an engine is built and remembered per model and machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from gamaneh.control.cost import CostModel
from gamaneh.core import Backend, Clock

MEASURED_ROWS = (1, 2, 4, 8, 16, 32, 64)
MEASURED_DEPTHS = (1, 8)

REPEATS = 3
"""Forwards of each size whose median counts; one more goes before them to warm up."""

WORTH_KEEPING = 1 << 24
"""Bytes of weights from which on measuring takes longer than reading a file."""

Progress = Callable[[int, int], None]
"""Called with the number of timed forwards and their total."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Median seconds of forwards without context.

    Args:
        verify: of the target, by computed token rows.
        draft_token: of the draft model with one row; None without one.
    """

    verify: Mapping[int, float]
    draft_token: float | None = None

    def scaled(self, factor: float) -> StepTimes:
        """The same on a machine that is this much slower."""
        draft = None if self.draft_token is None else self.draft_token * factor
        return StepTimes({rows: seconds * factor for rows, seconds in self.verify.items()}, draft)


def calibrate(
    cost: CostModel,
    target: Backend,
    draft: Backend | None = None,
    *,
    file: Path | None = None,
    progress: Progress = lambda done, total: None,
    clock: Clock = time.perf_counter,
) -> None:
    """Give the cost model its first measurements: those in `file`, at today's pace, or new ones.

    Args:
        file: where measurements are kept; None keeps none. A file that cannot be used is written anew.
    """
    times = None if file is None else _read(file, needs_draft=draft is not None)
    if times is not None:
        now = measure(target, None, rows=[min(times.verify)], clock=clock, progress=progress)
        times = times.scaled(next(iter(now.verify.values())) / times.verify[min(times.verify)])
    else:
        times = measure(target, draft, clock=clock, progress=progress)
        if file is not None:
            _write(file, times)
    for size, seconds in times.verify.items():
        cost.anchor_verify(size, seconds)
    if times.draft_token is not None:
        for depth in MEASURED_DEPTHS:
            cost.anchor_draft("draft_model", depth, depth * times.draft_token)


def measure(
    target: Backend,
    draft: Backend | None,
    *,
    rows: Sequence[int] = MEASURED_ROWS,
    clock: Clock = time.perf_counter,
    progress: Progress = lambda done, total: None,
) -> StepTimes:
    """Time forwards of some sizes, in turns, so that a slow moment of the machine falls on all of them."""
    sizes = sorted({target.computed_rows(count) for count in rows})
    jobs = [(target, size) for size in sizes] + ([] if draft is None else [(draft, 1)])
    seconds: list[list[float]] = [[] for _ in jobs]
    total = len(jobs) * (1 + REPEATS)
    for done in range(total):
        backend, size = jobs[done % len(jobs)]
        seconds[done % len(jobs)].append(backend.time_rows(size, clock))
        progress(done + 1, total)
    medians = [median(times[1:]) for times in seconds]
    return StepTimes(dict(zip(sizes, medians, strict=False)), None if draft is None else medians[-1])


def costs_file(folder: Path, target: Mapping[str, Any], draft: Mapping[str, Any] | None) -> Path:
    """Where the measurements of these models on this machine are kept.

    Args:
        target, draft: whatever decides about the time of a forward.
    """
    facts = {"target": target, "draft": draft, "machine": _machine()}
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()
    return folder / f"{digest[:32]}.json"


def processor_name() -> str:
    """The processor's model name; `platform` knows it on some systems only."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _machine() -> dict[str, Any]:
    return {"processor": processor_name(), "threads": torch.get_num_threads(), "torch": torch.__version__}


def _read(file: Path, *, needs_draft: bool) -> StepTimes | None:
    """What the file holds; None where it is missing, broken or lacks the draft model."""
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
        verify = {int(rows): float(seconds) for rows, seconds in document["verify"].items()}
        times = StepTimes(verify, document["draft_token"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    sound = bool(verify) and all(seconds > 0 for seconds in verify.values())
    return times if sound and (times.draft_token is not None) == needs_draft else None


def _write(file: Path, times: StepTimes) -> None:
    """Keep the measurements, whole or not at all; a folder that cannot be written to costs a measurement next time."""
    part = file.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(asdict(times)), encoding="utf-8")
        part.replace(file)
