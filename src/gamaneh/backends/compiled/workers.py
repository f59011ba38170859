"""Threads that help with a step: as many as the process has cores, asleep between steps."""

from __future__ import annotations

import _thread
import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from gamaneh.machine_limits import cpu_quota


def usable_cores() -> int:
    """Return the physical cores that the process may use, by affinity and by the quota of its control group."""
    try:
        mine: set[int] = os.sched_getaffinity(0)
    except AttributeError:  # not on macOS
        return psutil.cpu_count(logical=False) or 1
    cores = {_siblings(cpu) for cpu in mine}
    quota = cpu_quota()
    return max(1, len(cores) if quota is None else min(len(cores), round(quota)))


def _siblings(cpu: int) -> str:
    """A name for the core that a logical processor belongs to."""
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


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

    def run(self, function: Callable[..., None], *args: Any, keep: object = None) -> None:
        """Call `function(*args, thread)` in every thread; returns when the caller's own call does.

        Args:
            keep: owner of the memory that the arguments point to; it is held until the last thread is done.
        """
        self.settle()
        for helper in self._helpers:
            helper.start(function, args, keep)
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
        self._closing = False
        self._task: tuple[Callable[..., None], tuple[Any, ...], object] | None = None
        threading.Thread(target=self._loop, name=f"compiled-{number}", daemon=True).start()

    def start(self, function: Callable[..., None], args: tuple[Any, ...], keep: object) -> None:
        self._idle.acquire()
        self._task = function, args, keep
        self._go.release()

    def settle(self) -> None:
        self._idle.acquire()
        self._idle.release()

    def close(self) -> None:
        """Let the thread end. It may be in a call: this one may even be made by it, when it drops its last task."""
        self._closing = True
        with contextlib.suppress(RuntimeError):  # it is about to start a task, and looks afterwards
            self._go.release()

    def _loop(self) -> None:
        while not self._closing:
            self._go.acquire()
            task, self._task = self._task, None
            if task is None:
                return
            try:
                task[0](*task[1], self._number)
            finally:
                task = None
                self._idle.release()
