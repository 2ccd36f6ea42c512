# SPDX-License-Identifier: Apache-2.0
"""What the compiler makes of every kernel for an H100 or H200, without one: what only interprets would not be found out
by its results."""

import os
import re
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """name, warps, registers, stack, shared and operations of each kernel that was compiled."""
    cache = str(tmp_path_factory.mktemp("triton"))
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": cache}
    command = [sys.executable, "-m", "tests.kernels.triton.build_all"]
    output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    return [dict(re.findall(r"(\w+)=(\S*)", line)) for line in output.splitlines()]


def test_every_kernel_compiles(built: list[dict[str, str]]) -> None:
    names = {"attend", "choose_rows", "combine", "gate_rows", "norm_rows", "rope_and_store_heads"}
    assert {kernel["name"] for kernel in built} == names


def test_tiles_stay_in_registers(built: list[dict[str, str]]) -> None:
    assert max(int(kernel["stack"]) for kernel in built) <= 64  # bytes of a thread


def test_two_programs_share_a_multiprocessor(built: list[dict[str, str]]) -> None:
    assert max(int(kernel["shared"]) for kernel in built) <= 113 << 10  # of 227 KiB


def test_the_samplers_arithmetic_is_rounded_operation_by_operation(built: list[dict[str, str]]) -> None:
    """Of approximate or fused ones, or such that take small numbers for 0, there are none; floor() takes its argument's
    smallest for 0, which is no change: it is never below 2**-25."""
    for kernel in built:
        if kernel["name"] == "choose_rows":
            operations = set(kernel["operations"].split(","))
            assert operations >= {"add.rn.f32", "sub.rn.f32", "mul.rn.f32"}
            inexact = {name for name in operations if re.search(r"fma|approx|full|ftz", name)}
            assert inexact == {"cvt.rmi.ftz.f32.f32"}
