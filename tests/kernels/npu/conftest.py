# SPDX-License-Identifier: Apache-2.0
"""kernels/npu on CPU, over operations that stand for torch_npu's."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from kernels import Backend, Shape
from tests.fixtures.npu_ops import fake_torch_npu

A2, A3, P310 = "Ascend910B2", "Ascend910_9391", "Ascend310P3"
LoadNpu = Callable[..., Backend]


@pytest.fixture
def load_npu(monkeypatch: pytest.MonkeyPatch) -> Iterator[LoadNpu]:
    """The backend for a chip and a shape, of which a test says what it is about."""

    def load(soc: str, **shape: Any) -> Backend:
        monkeypatch.setitem(sys.modules, "torch_npu", fake_torch_npu(soc))
        defaults = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 128, "block_tokens": 16, "dtype": torch.float16}
        return importlib.import_module("kernels.npu").load(torch.device("cpu"), Shape(**{**defaults, **shape}))

    yield load
    for name in [name for name in sys.modules if name.startswith("kernels.npu")]:
        del sys.modules[name]
