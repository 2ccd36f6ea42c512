# SPDX-License-Identifier: Apache-2.0
"""Gated activations, against the reference."""

import pytest
import torch

from kernels import reference as ops
from kernels.triton.cores import cores_of
from kernels.triton.gated import gated
from tests.kernels.triton import DEVICE

CORES = cores_of(DEVICE)
# numpy's, of the interpreter: exp may well be infinite.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")


@pytest.mark.parametrize("width", [1, 96, 100, 1100])
@pytest.mark.parametrize("num_rows", [0, 1, 3])
@pytest.mark.parametrize(("is_gelu", "expected"), [(False, ops.silu_mul), (True, ops.gelu_tanh_mul)])
def test_gate(width: int, num_rows: int, is_gelu: bool, expected: object) -> None:
    gate_up = torch.randn(num_rows, 2 * width) * 5
    got = gated(gate_up.to(DEVICE), is_gelu, CORES).cpu()
    torch.testing.assert_close(got, expected(gate_up), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_gelu", [False, True])
def test_a_gate_far_from_zero_is_open_or_closed(is_gelu: bool) -> None:
    gate_up = torch.tensor([[-200.0, 200.0, 3.0, 3.0]], device=DEVICE)
    assert gated(gate_up, is_gelu, CORES).tolist() == [[0, 600]]


def test_columns_of_a_wider_product() -> None:
    gate_up = torch.randn(3, 50)
    got = gated(gate_up.to(DEVICE)[:, 10:30], False, CORES).cpu()
    torch.testing.assert_close(got, ops.silu_mul(gate_up[:, 10:30]), rtol=1e-5, atol=1e-5)
