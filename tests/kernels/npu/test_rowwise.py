# SPDX-License-Identifier: Apache-2.0
"""Operations on each token by itself against the reference's, in float32."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kernels import reference
from kernels.int8_weight import Int8Weight
from kernels.reference.int8_linear import int8_linear
from tests.kernels.npu.conftest import A2, A3, P310, LoadNpu

TYPES = [(A2, torch.float16), (A2, torch.bfloat16), (A3, torch.bfloat16), (P310, torch.float16)]
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 1e-5}
of_each_type = pytest.mark.parametrize(("soc", "dtype"), TYPES)
of_each_size = pytest.mark.parametrize("num_tokens", [1, 7, 130])


def close(actual: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.float(), expected.float(), rtol=tolerance, atol=tolerance)


@of_each_type
@of_each_size
@pytest.mark.parametrize("is_wide", [False, True])
def test_norms(load_npu: LoadNpu, soc: str, dtype: torch.dtype, num_tokens: int, is_wide: bool) -> None:
    """is_wide: weights of float32, as some models have them."""
    ops = load_npu(soc, dtype=dtype)
    x, residual = torch.randn(2, num_tokens, 48).to(dtype)
    weight = torch.randn(48).to(torch.float32 if is_wide else dtype)
    close(ops.rms_norm(x, weight, 1e-5), reference.rms_norm(x.float(), weight.float(), 1e-5))
    expected = reference.add_rms_norm(x.float(), residual.float(), weight.float(), 1e-5)
    total, normed = ops.add_rms_norm(x, residual, weight, 1e-5)
    assert normed.dtype is total.dtype is dtype
    close(total, expected[0])
    close(normed, expected[1])


@of_each_type
def test_embed(load_npu: LoadNpu, soc: str, dtype: torch.dtype) -> None:
    ops = load_npu(soc, dtype=dtype)
    table, weight = torch.randn(9, 32).to(dtype), torch.randn(32).to(dtype)
    token_ids = torch.tensor([8, 0, 8], dtype=torch.int32)
    before = table.clone()
    assert torch.equal(ops.embed(table, token_ids, 1.0), table[[8, 0, 8]])
    close(ops.embed(table, token_ids, 5.5), table[[8, 0, 8]].float() * 5.5)
    x, normed = ops.embed_rms_norm(table, token_ids, 5.5, weight, 1e-5)
    assert torch.equal(x, ops.embed(table, token_ids, 5.5))
    assert torch.equal(normed, ops.rms_norm(x, weight, 1e-5))
    assert torch.equal(table, before)


@of_each_type
@of_each_size
def test_gates(load_npu: LoadNpu, soc: str, dtype: torch.dtype, num_tokens: int) -> None:
    ops = load_npu(soc, dtype=dtype)
    # Not contiguous: linear() may answer so.
    gate_up = torch.randn(2 * 65, num_tokens).to(dtype).t()
    close(ops.silu_mul(gate_up), reference.silu_mul(gate_up.float()))
    close(ops.gelu_tanh_mul(gate_up), reference.gelu_tanh_mul(gate_up.float()))


def test_soft_cap(load_npu: LoadNpu) -> None:
    x = torch.tensor([[-1e9, -3.0, 0.0, 5.0, torch.inf]])
    close(load_npu(A2).soft_cap(x, 30.0), reference.soft_cap(x, 30.0))


@of_each_type
@of_each_size
@pytest.mark.parametrize("num_outputs", [1, 33])
def test_linear(load_npu: LoadNpu, soc: str, dtype: torch.dtype, num_tokens: int, num_outputs: int) -> None:
    ops = load_npu(soc, dtype=dtype)
    x, weight = torch.randn(num_tokens, 40).to(dtype), torch.randn(num_outputs, 40).to(dtype) / 8
    bias = torch.randn(num_outputs).to(dtype)
    packed = ops.pack_weight(weight)
    close(ops.linear(x, packed, None), x.float() @ weight.float().t())
    close(ops.linear(x, packed, bias), x.float() @ weight.float().t() + bias.float())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@of_each_size
@pytest.mark.parametrize("has_bias", [False, True])
def test_linear_of_int8(load_npu: LoadNpu, dtype: torch.dtype, num_tokens: int, has_bias: bool) -> None:
    ops = load_npu(A2, dtype=dtype, is_quantized=True)
    weight = Int8Weight(torch.randint(-127, 128, (33, 40), dtype=torch.int8), torch.rand(33) / 500 + 1e-4)
    x, bias = torch.randn(num_tokens, 40).to(dtype), torch.randn(33).to(dtype) if has_bias else None
    out = ops.linear(x, ops.pack_weight(weight), bias)
    assert out.dtype is dtype
    close(out, int8_linear(x.float(), weight, None if bias is None else bias.float()))


def test_a_row_of_zeros_stays_one_in_int8(load_npu: LoadNpu) -> None:
    ops = load_npu(A2, is_quantized=True)
    weight = ops.pack_weight(Int8Weight(torch.full((3, 8), 127, dtype=torch.int8), torch.ones(3)))
    assert torch.equal(ops.linear(torch.zeros(2, 8).half(), weight, None), torch.zeros(2, 3).half())
