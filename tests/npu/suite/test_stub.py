# SPDX-License-Identifier: Apache-2.0
"""What the other tests of the suite rest on: that the stub sees each wait, copy and allocation, and refuses what a
device would refuse."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.npu import stub
from tests.npu.suite.processes import run


@pytest.mark.parametrize(
    ("act", "copied"),
    [
        (lambda x: x.cpu(), "waiting copy D2H"),
        (lambda x: x[0].item(), "waiting copy D2H"),
        (lambda x: torch.zeros(4).to(x.device), "waiting copy H2D"),
        (lambda x: torch.zeros(4).to(x.device, non_blocking=True), "waiting copy H2D"),
        (lambda x: torch.tensor([1, 2], device=x.device), "waiting copy H2D"),
        (lambda x: x.copy_(torch.zeros(4)), "waiting copy H2D"),
    ],
)
def test_a_copy_of_pageable_memory_waits(device: torch.device, act: Callable[[Tensor], object], copied: str) -> None:
    x = torch.empty(4, device=device)
    act(x)
    assert [entry for entry in stub.log() if "copy" in entry] == [copied]
    assert stub.counters.waiting.H2D.count + stub.counters.waiting.D2H.count == 1
    assert stub.counters.queued.H2D.count + stub.counters.queued.D2H.count == 0


def test_a_copy_of_pinned_memory_does_not_wait(device: torch.device) -> None:
    pinned = torch.arange(4, dtype=torch.int32).pin_memory()
    back = torch.empty(4, dtype=torch.int32, pin_memory=True)
    x = pinned.to(device, non_blocking=True)
    back.copy_(x, non_blocking=True)
    assert stub.log() == ["copy H2D", "copy D2H"]
    assert stub.num_syncs() == 0
    assert (stub.counters.queued.H2D.bytes, stub.counters.queued.D2H.largest) == (16, 16)
    assert back.tolist() == [0, 1, 2, 3]


def test_each_way_to_wait_is_counted(device: torch.device) -> None:
    event = torch.npu.Event()
    event.record()
    event.synchronize()
    torch.npu.current_stream().synchronize()
    torch.npu.synchronize()
    counted = stub.counters
    assert (counted.event_syncs, counted.stream_syncs, counted.device_syncs) == (1, 1, 1)


def test_launches_are_known_by_name(device: torch.device) -> None:
    x = torch.empty(4, device=device)
    x + x
    assert stub.log() == ["aclnnAdd"]
    assert stub.counters.launches == 1


def test_allocations_are_counted(device: torch.device) -> None:
    size = 256 << 20
    x = torch.empty(size, dtype=torch.int8, device=device)
    assert stub.counters.mallocs == 1
    assert size <= stub.counters.largest_malloc == stub.counters.malloc_bytes < size + (4 << 20)
    del x
    torch.npu.empty_cache()
    assert stub.counters.frees >= 1


def test_the_host_dies_of_reading_the_device() -> None:
    read = "import ctypes; print('alive', flush=True); print(ctypes.c_int.from_address(x.data_ptr()).value)"
    x = "x = torch.ones(4, dtype=torch.int32).to('npu')"
    died = run(f"{x}\n{read}")
    assert died.returncode == -11, died.stderr
    assert "alive" in died.stdout
    opened = run(f"from tests.npu import stub\n{x}\nwith stub.open_memory():\n    {read}")
    assert "alive\n1\n" in opened.stdout, opened.stderr


def test_a_full_device_raises_out_of_memory() -> None:
    code = """
print(torch.npu.mem_get_info())
kept = torch.empty(48 << 20, dtype=torch.int8, device="npu")
try:
    torch.empty(48 << 20, dtype=torch.int8, device="npu")
except torch.OutOfMemoryError:
    print("full")
del kept
torch.empty(48 << 20, dtype=torch.int8, device="npu")
print("enough")
"""
    ran = run(code, STUB_MEMORY_BYTES=str(64 << 20))
    assert f"({64 << 20}, {64 << 20})\nfull\nenough\n" in ran.stdout, ran.stderr


@pytest.mark.parametrize(("soc", "versions"), [("Ascend910_9391", range(250, 256)), ("Ascend310P3", range(200, 206))])
def test_the_machine_is_what_the_environment_says(soc: str, versions: range) -> None:
    code = """
import torch_npu.npu.utils as utils
print(torch.npu.get_device_name(), torch.npu.device_count(), utils.get_soc_version())
x = torch.empty(4, device="npu:1")
"""
    ran = run(code, STUB_SOC=soc, STUB_DEVICES="2")
    found = re.search(r"(\w+) 2 (\d+)\n", ran.stdout)
    assert found, ran.stderr
    assert found[1] == soc
    assert int(found[2]) in versions


def test_no_operation_falls_back_to_the_host(device: torch.device) -> None:
    """What torch_npu has no operation for is an error, not a slow way round."""
    with pytest.raises(RuntimeError, match="fall"):
        torch.linalg.eigh(torch.ones(2, 2, device=device))


def test_host_and_device_do_not_mix(device: torch.device) -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(4, device=device) + torch.ones(4)


@pytest.mark.parametrize(
    "wait", [lambda x: x.cpu(), lambda x: torch.npu.synchronize(), lambda x: x.copy_(torch.ones(4))]
)
def test_waiting_in_a_capture_is_an_error(wait: Callable[[Tensor], object]) -> None:
    """In a process of its own: what was being captured is lost with it."""
    x = torch.empty(4, device="npu")
    graph = torch.npu.NPUGraph()
    with pytest.raises(RuntimeError, match="error code is 107027"), torch.npu.graph(graph):
        wait(x)
