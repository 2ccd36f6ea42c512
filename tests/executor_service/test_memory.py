# SPDX-License-Identifier: Apache-2.0
"""Memory and CPUs are the cgroup's, in both of its spellings."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor_service.memory import available_bytes, usable_cpus

GIB = 2**30


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text(f"MemTotal: {32 * 2**20} kB\nMemAvailable: {20 * 2**20} kB\n")
    return path


def write(directory: Path, **files: object) -> Path:
    for name, value in files.items():
        path = directory / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{value}\n")
    return directory


def test_no_limit_leaves_what_the_machine_has(tmp_path: Path, meminfo: Path) -> None:
    write(tmp_path, memory_dot_max="max", memory_dot_current=GIB)
    assert available_bytes(tmp_path, meminfo) == 20 * GIB


def test_cgroup_v2_limit_less_use(tmp_path: Path, meminfo: Path) -> None:
    write(tmp_path, memory_dot_max=3 * GIB, memory_dot_current=GIB)
    assert available_bytes(tmp_path, meminfo) == 2 * GIB


def test_cgroup_v1_limit_less_use(tmp_path: Path, meminfo: Path) -> None:
    write(tmp_path, memory__memory_dot_limit_in_bytes=4 * GIB, memory__memory_dot_usage_in_bytes=GIB)
    assert available_bytes(tmp_path, meminfo) == 3 * GIB


def test_cpu_quota_bounds_the_threads(tmp_path: Path) -> None:
    assert usable_cpus(write(tmp_path, cpu_dot_max="100000 100000")) == 1
    assert usable_cpus(write(tmp_path, cpu_dot_max="50000 100000")) == 1
    assert usable_cpus(write(tmp_path, cpu_dot_max="max 100000")) >= 1
