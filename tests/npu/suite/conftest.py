# SPDX-License-Identifier: Apache-2.0
"""What the suite's tests share: one device, the simulation of its numbers, the type that its chip computes in."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
import torch_npu  # noqa: F401

from tests.fixtures.npu_checks import Soc
from tests.npu import stub
from tests.npu.simulation import Simulation


@pytest.fixture(scope="session", autouse=True)
def device() -> torch.device:
    Soc.name = os.environ["STUB_SOC"]
    torch.npu.set_device(0)
    return torch.device("npu:0")


@pytest.fixture(scope="session")
def dtype() -> torch.dtype:
    return torch.float16 if Soc.is_310p() else torch.bfloat16


@pytest.fixture(autouse=True)
def _counted_from_zero(device: torch.device) -> None:
    torch.npu.synchronize()
    stub.reset()


@pytest.fixture(scope="session")
def simulation(device: torch.device) -> Simulation:
    return Simulation()


@pytest.fixture
def simulated(simulation: Simulation) -> Iterator[Simulation]:
    """In the thread of the test."""
    with simulation, torch.inference_mode():
        yield simulation
