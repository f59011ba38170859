"""What the process may take of the machine: cores by the quota of its control groups, memory by their limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

GROUPS = Path("/sys/fs/cgroup")
"""Where Linux shows control groups; tests put a folder of their own here."""

MEMBERSHIP = Path("/proc/self/cgroup")

_UNLIMITED = 1 << 60
"""Version 1 writes a number near 2**63 where there is no limit."""


def cpu_quota() -> float | None:
    """Cores that the control groups let the process use at once; None without a limit."""
    quotas = [quota for folder in _folders() if (quota := _quota_of(folder)) is not None]
    return min(quotas, default=None)


def available_memory() -> int:
    """Bytes that can be taken without swapping: of the machine, and of what the control groups still allow."""
    left = [limit - used for folder in _folders() for limit, used in _memory_of(folder)]
    return max(0, min([int(psutil.virtual_memory().available), *left]))


def total_memory() -> int:
    """Bytes of memory of the machine, or of the smallest control group that the process is in."""
    limits = [limit for folder in _folders() for limit, _ in _memory_of(folder)]
    return min([int(psutil.virtual_memory().total), *limits])


def _folders() -> Iterator[Path]:
    """The process's groups and those above, of version 2 and of the two controllers of version 1.

    In a container the path may be that of the host: then only the top folder is there, and it is the container's.
    """
    try:
        lines = [line.split(":", 2) for line in MEMBERSHIP.read_text(encoding="utf-8").splitlines()]
    except OSError:
        lines = []
    paths = {controller: path for _, controllers, path in lines for controller in controllers.split(",")}
    for controller, top in (("", GROUPS), ("cpu", GROUPS / "cpu"), ("memory", GROUPS / "memory")):
        folder = top / paths.get(controller, "/").lstrip("/")
        while folder != top and top in folder.parents:
            yield folder
            folder = folder.parent
        yield top


def _quota_of(folder: Path) -> float | None:
    both = _words(folder / "cpu.max")
    if len(both) != 2:
        both = [*_words(folder / "cpu.cfs_quota_us"), *_words(folder / "cpu.cfs_period_us")]
    try:
        limit, period = map(int, both)
    except ValueError:  # there is no such file, or no limit
        return None
    return limit / period if limit > 0 and period > 0 else None


def _memory_of(folder: Path) -> Iterator[tuple[int, int]]:
    """Limit and use of a group that has a limit; pages of files that can be dropped do not count as used."""
    for limit_name, used_name, idle in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            (limit,), (used,) = (map(int, _words(folder / name)) for name in (limit_name, used_name))
        except ValueError:
            continue
        words = _words(folder / "memory.stat")
        dropped = dict(zip(words[::2], words[1::2], strict=False)).get(idle, "0")
        if limit < _UNLIMITED:
            yield limit, max(0, used - int(dropped))


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split()
    except OSError:
        return []
