"""Control groups limit cores and memory, whichever version shows them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from gamaneh import machine_limits
from gamaneh.backends.compiled.workers import usable_cores
from gamaneh.engine.assembly import automatic_blocks
from gamaneh.options import EngineOptions
from gamaneh.testing.tiny import TINY_CONFIGS

MIB = 1 << 20


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write files of control groups; the process is in `/jobs/mine`."""
    membership = tmp_path / "membership"
    membership.write_text("0::/jobs/mine\n4:cpu,cpuacct:/jobs/mine\n5:memory:/jobs/mine\n")
    root = tmp_path / "groups"
    monkeypatch.setattr(machine_limits, "MEMBERSHIP", membership)
    monkeypatch.setattr(machine_limits, "GROUPS", root)

    def write(**files: str) -> None:
        for name, text in files.items():
            path = root / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def written(files: dict[str, str]) -> None:
        write(**{name.replace("/", "__"): text for name, text in files.items()})

    return written


def test_without_groups_there_is_no_limit(groups):
    assert machine_limits.cpu_quota() is None
    assert machine_limits.available_memory() > 0


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu.max": "max 100000"}, None),
        ({"jobs/mine/cpu.max": "max 100000", "jobs/cpu.max": "100000 100000"}, 1.0),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({"cpu/jobs/mine/cpu.cfs_quota_us": "50000", "cpu/jobs/mine/cpu.cfs_period_us": "100000"}, 0.5),
    ],
)
def test_the_quota_is_the_smallest_of_the_group_and_those_above(files, quota, groups):
    groups(files)
    assert machine_limits.cpu_quota() == quota


def test_threads_follow_the_quota(groups):
    groups({"cpu.max": "100000 100000"})
    assert usable_cores() == 1


@pytest.mark.parametrize(
    "files",
    [
        {
            "memory.max": str(64 * MIB),
            "memory.current": str(40 * MIB),
            "memory.stat": f"anon 1 inactive_file {8 * MIB}",
        },
        {
            "memory/jobs/mine/memory.limit_in_bytes": str(64 * MIB),
            "memory/jobs/mine/memory.usage_in_bytes": str(40 * MIB),
            "memory/jobs/mine/memory.stat": f"total_inactive_file {8 * MIB}",
            "memory/memory.limit_in_bytes": str(0x7FFFFFFFFFFFF000),
            "memory/memory.usage_in_bytes": "1",
        },
    ],
    ids=["version 2", "version 1"],
)
def test_memory_is_what_the_group_has_left(files, groups):
    groups(files)
    assert machine_limits.available_memory() == 32 * MIB
    assert machine_limits.total_memory() == 64 * MIB


def test_the_cache_follows_the_limit_of_the_group(groups):
    config, options = TINY_CONFIGS["llama"], EngineOptions(max_batch=16)
    free = automatic_blocks(config, options, torch.float32)
    groups({"memory.max": "400000", "memory.current": "0"})
    assert 1 <= automatic_blocks(config, options, torch.float32) < free / 4
