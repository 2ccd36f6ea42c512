# SPDX-License-Identifier: Apache-2.0
"""A device that is not there, or whose software is missing, stops the start by its name."""

from __future__ import annotations

import pytest
import torch

from executor_service.device.accelerator import is_out_of_memory, open_device
from protos.errors import ConfigError


def test_the_cpu_is_always_there() -> None:
    assert open_device("cpu") == torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_named() -> None:
    with pytest.raises(ConfigError, match=r"EXECUTOR_DEVICE=cuda:1: torch \S+ sees no cuda device here"):
        open_device("cuda:1")


def test_missing_npu_software_is_named() -> None:
    with pytest.raises(ConfigError, match=r"EXECUTOR_DEVICE=npu:0: torch_npu cannot be imported: .*packserve\[npu\]"):
        open_device("npu:0")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (torch.OutOfMemoryError("no"), True),
        (RuntimeError("NPU out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("wrong shape"), False),
    ],
)
def test_errors_for_lack_of_memory_are_known(error: RuntimeError, expected: bool) -> None:
    assert is_out_of_memory(error) is expected
