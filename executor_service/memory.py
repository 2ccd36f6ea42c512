# SPDX-License-Identifier: Apache-2.0
"""What this process may use: the cgroup's memory and CPU, not the machine's.

Reads cgroup v2 and v1 files; their meaning is in the kernel's admin guide, cgroup-v2 and cgroup-v1.
"""

from __future__ import annotations

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def available_bytes(cgroup: Path = _CGROUP, meminfo: Path = Path("/proc/meminfo")) -> int:
    """The least of what the machine has available and what the memory cgroup leaves."""
    free = [_meminfo_available(meminfo)]
    for limit, usage in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        limit_bytes, used_bytes = _number(cgroup / limit), _number(cgroup / usage)
        if limit_bytes is not None and used_bytes is not None:
            free.append(limit_bytes - used_bytes)
    return max(0, min(free))


def usable_cpus(cgroup: Path = _CGROUP) -> int:
    """Whole CPUs that the affinity mask and the CPU quota allow, at least 1."""
    cpus = len(os.sched_getaffinity(0))
    quota = _quota(cgroup)
    return max(1, min(cpus, int(quota))) if quota else cpus


def _quota(cgroup: Path) -> float | None:
    try:
        quota, period = (cgroup / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        pass
    quota_us, period_us = _number(cgroup / "cpu/cpu.cfs_quota_us"), _number(cgroup / "cpu/cpu.cfs_period_us")
    return quota_us / period_us if quota_us and period_us and quota_us > 0 else None


def _meminfo_available(meminfo: Path) -> int:
    for line in meminfo.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{meminfo} has no MemAvailable")


def _number(path: Path) -> int | None:
    """None where the file is missing or says "max"."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
