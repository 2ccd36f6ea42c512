# SPDX-License-Identifier: Apache-2.0
"""W8A8 through npu_dynamic_quant and npu_quant_matmul: the integers, scales and results of the definition, to the bit.

Scales of weights are powers of two: in which order the operation multiplies by both scales is left open.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from executor_service.models.decoder import Decoder
from executor_service.models.model_config import load_model_config
from executor_service.models.weights import load_weights
from kernels.int8_weight import Int8Weight
from kernels.reference.int8_linear import int8_linear, quantize_rows
from tests.fixtures.decoding import CPU, Rows
from tests.fixtures.quantized_model import DefinedProducts, power_of_two, write_quantized_model
from tests.kernels.npu.conftest import A2, LoadNpu

HALF = torch.float16
of_each_type = pytest.mark.parametrize("dtype", [HALF, torch.bfloat16])
STEPS = [{0: list(range(0, 320, 11)), 1: [7]}, {0: [3], 1: [9]}, {0: [5], 1: [6, 4]}]


def rows_of_all_sizes(dtype: torch.dtype) -> Tensor:
    """[64, 40], the smallest with scales below what float16 has digits for."""
    torch.manual_seed(0)
    return (torch.randn(64, 40) * torch.logspace(-4, 2, 64)[:, None]).to(dtype)


@of_each_type
def test_integers_and_scales_are_the_definitions(load_npu: LoadNpu, dtype: torch.dtype) -> None:
    load_npu(A2, dtype=dtype, is_quantized=True)
    x = rows_of_all_sizes(dtype)
    for ours, expected in zip(sys.modules["torch_npu"].npu_dynamic_quant(x), quantize_rows(x), strict=True):
        assert ours.dtype is expected.dtype
        assert torch.equal(ours, expected)


@of_each_type
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_are_the_definitions(load_npu: LoadNpu, dtype: torch.dtype, has_bias: bool) -> None:
    ops, x = load_npu(A2, dtype=dtype, is_quantized=True), rows_of_all_sizes(dtype)
    bias = torch.randn(33).to(dtype) if has_bias else None
    weight = Int8Weight(torch.randint(-127, 128, (33, 40), dtype=torch.int8), power_of_two(torch.rand(33) / 99))
    assert torch.equal(ops.linear(x, ops.pack_weight(weight), bias), int8_linear(x, weight, bias))


def test_a_models_logits_are_those_of_the_definitions_products(load_npu: LoadNpu, tmp_path: Path) -> None:
    """Other operations are the same in both: those of the reference round to float16 elsewhere, and where that makes
    an integer its neighbour, it is a hundredth of a value."""
    write_quantized_model(tmp_path, scale_of=power_of_two, hidden_size=128, head_dim=128)
    config = load_model_config(tmp_path)
    ops = load_npu(A2, num_heads=config.num_heads, num_kv_heads=config.num_kv_heads, is_quantized=True)
    ours, defined = (
        Rows(Decoder(config, load_weights(tmp_path, config, HALF, CPU), each), 2, 64)
        for each in (ops, DefinedProducts(ops))
    )
    for step in STEPS:
        found, expected = ours.forward(step), defined.forward(step)
        for row in step:
            assert torch.equal(found[row], expected[row])
