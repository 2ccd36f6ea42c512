# SPDX-License-Identifier: Apache-2.0
"""Products with weights, against the reference; W8A8's to the bit."""

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kernels import reference as ops
from kernels.int8_weight import Int8Weight
from kernels.reference.int8_linear import int8_linear
from kernels.triton.linear import int8_product, linear
from tests.kernels.triton import DEVICE


@pytest.mark.parametrize("has_bias", [False, True])
def test_linear(has_bias: bool) -> None:
    x, weight, bias = torch.randn(5, 48), torch.randn(7, 48), torch.randn(7) if has_bias else None
    got = linear(x.to(DEVICE), weight.to(DEVICE), None if bias is None else bias.to(DEVICE))
    torch.testing.assert_close(got.cpu(), ops.linear(x, weight, bias), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_rows", [0, 1, 33])
def test_w8a8(num_rows: int, has_bias: bool, dtype: torch.dtype) -> None:
    x, bias = torch.randn(num_rows, 48).to(dtype), torch.randn(16).to(dtype) if has_bias else None
    values, scale = torch.randint(-127, 128, (16, 48), dtype=torch.int8), torch.rand(16) + 0.1
    there = Int8Weight(values.to(DEVICE), scale.to(DEVICE))
    got = linear(x.to(DEVICE), there, None if bias is None else bias.to(DEVICE))
    assert torch.equal(got.cpu(), ops.linear(x, Int8Weight(values, scale), bias))


def test_w8a8_by_the_product_of_a_gpu() -> None:
    """Values are such that a CPU that adds pairs of products in 16 bits is exact too."""
    x, bias = torch.randint(-60, 61, (5, 48)).float(), torch.randn(16)
    x[:, 0] = 127  # so that integers are the values
    weight = Int8Weight(torch.randint(-60, 61, (16, 48), dtype=torch.int8), torch.rand(16) + 0.1)
    assert torch.equal(int8_linear(x, weight, bias, int8_product), ops.linear(x, weight, bias))


@pytest.mark.parametrize("num_rows", [0, 1, 17, 31, 32, 33, 40])
@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(16, 48), (5, 48), (16, 50), (12, 44)])
def test_integer_products_are_exact(
    num_rows: int, num_outputs: int, num_inputs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of sizes that the vendor's library does not take: here it is as strict on any device."""
    monkeypatch.setattr(torch, "_int_mm", functools.partial(product_of_a_gpu, torch._int_mm))
    x = torch.randint(-60, 61, (num_rows, num_inputs), dtype=torch.int8)
    weight = torch.randint(-60, 61, (num_outputs, num_inputs), dtype=torch.int8)
    assert torch.equal(int8_product(x.to(DEVICE), weight.to(DEVICE)).cpu(), x.int() @ weight.int().t())


def product_of_a_gpu(product: Callable[..., Tensor], x: Tensor, weight: Tensor) -> Tensor:
    """x [N, I], weight [I, O]. What torch._int_mm asks of a GPU's."""
    assert x.shape[0] > 16
    assert all(size % 8 == 0 for size in weight.shape)
    return product(x, weight)
