"""Threads that help with a step: as many as the process has cores, asleep between steps."""

from __future__ import annotations

import _thread
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil


def usable_cores() -> int:
    """Return the physical cores that the process may use, by affinity and by the quota of its control group."""
    try:
        mine: set[int] = os.sched_getaffinity(0)
    except AttributeError:  # not on macOS
        return psutil.cpu_count(logical=False) or 1
    cores = {_siblings(cpu) for cpu in mine}
    quota = _quota()
    return max(1, len(cores) if quota is None else min(len(cores), round(quota)))


def _siblings(cpu: int) -> str:
    """A name for the core that a logical processor belongs to."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _quota() -> float | None:
    """Cores that the control group may use at once; None without a limit."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        base = Path("/sys/fs/cgroup/cpu")
        limit_us = int((base / "cpu.cfs_quota_us").read_text())
        return limit_us / int((base / "cpu.cfs_period_us").read_text()) if limit_us > 0 else None
    except (OSError, ValueError):
        return None


class Workers:
    """Calls one function in all threads at once; the caller is thread 0.

    The caller does not wait for threads that have not woken up yet: the function shares its work out by itself.
    Before the next call, all are waited for.

    Args:
        threads: number of them, the caller included.
    """

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._helpers = [_Helper(number) for number in range(1, threads)]

    def run(self, function: Callable[..., None], *args: Any) -> None:
        """Call `function(*args, thread)` in every thread; returns when the caller's own call does."""
        self.settle()
        for helper in self._helpers:
            helper.start(function, args)
        function(*args, 0)

    def settle(self) -> None:
        """Wait until no thread is in a call: what they were given may be changed then."""
        for helper in self._helpers:
            helper.settle()

    def close(self) -> None:
        for helper in self._helpers:
            helper.close()
        self._helpers = []


class _Helper:
    """One thread, asleep in a lock."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._go, self._idle = _thread.allocate_lock(), _thread.allocate_lock()
        self._go.acquire()
        self._task: tuple[Callable[..., None], tuple[Any, ...]] | None = None
        threading.Thread(target=self._loop, name=f"compiled-{number}", daemon=True).start()

    def start(self, function: Callable[..., None], args: tuple[Any, ...]) -> None:
        self._idle.acquire()
        self._task = function, args
        self._go.release()

    def settle(self) -> None:
        self._idle.acquire()
        self._idle.release()

    def close(self) -> None:
        self._idle.acquire()
        self._task = None
        self._go.release()

    def _loop(self) -> None:
        while True:
            self._go.acquire()
            if self._task is None:
                return
            function, args = self._task
            try:
                function(*args, self._number)
            finally:
                self._idle.release()
