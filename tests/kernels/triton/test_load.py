# SPDX-License-Identifier: Apache-2.0
"""What the backend takes, and that nothing asks for a driver before it is loaded."""

import os
import subprocess
import sys

import pytest
import torch

import kernels
from kernels import Shape
from kernels import reference as ops
from protos.errors import ConfigError
from tests.kernels.triton import DEVICE

SHAPE = Shape(4, 2, 64, 16, torch.float32)


def test_an_odd_head_size_is_refused() -> None:
    with pytest.raises(ConfigError, match="a head has 33"):
        kernels.load("triton", DEVICE, Shape(4, 2, 33, 16, torch.float32))


def test_another_device_is_refused() -> None:
    with pytest.raises(ConfigError, match="not on meta"):
        kernels.load("triton", torch.device("meta"), SHAPE)


def test_the_processor_is_refused_unless_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ConfigError, match="not on cpu"):
        kernels.load("triton", torch.device("cpu"), SHAPE)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="need the package triton"):
        kernels.load("triton", DEVICE, SHAPE)


def test_import_asks_for_no_driver() -> None:
    program = (
        "import triton, kernels.triton.backend\n"
        "assert triton.runtime.driver._active is None and triton.runtime.driver._default is None"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def test_a_captured_step_is_replayed_as_it_is() -> None:
    backend = kernels.load("triton", DEVICE, SHAPE)
    assert backend.can_graph
    assert backend.graph_update((3, 4)) == []


def test_scores_and_caps_are_the_references() -> None:
    backend = kernels.load("triton", DEVICE, SHAPE)
    logits, token_ids = torch.randn(3, 9), torch.tensor([0, 8, 3], dtype=torch.int32)
    got = backend.score(logits.to(DEVICE), token_ids.to(DEVICE), 4)
    for tensor, other in zip(got, ops.score(logits, token_ids, 4), strict=True):
        torch.testing.assert_close(tensor.cpu(), other)
    torch.testing.assert_close(backend.soft_cap(logits.to(DEVICE), 2.0).cpu(), ops.soft_cap(logits, 2.0))
