# SPDX-License-Identifier: Apache-2.0
"""The product of W8A8 is that of a plain loop over integers, to the bit, on any CPU and in any company."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from kernels.int8_weight import Int8Weight
from kernels.reference import linear
from kernels.reference.int8_linear import Product, at_once, by_chunks, exact_product, int8_linear, quantize_rows
from tests.fixtures.quantized_model import naive_linear, naive_weight

CPU = torch.device("cpu")
SHAPES = [(1, 1), (3, 5), (64, 64), (50, 33), (129, 257), (320, 64), (7, 2050)]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=[1, 2], ids=["1-thread", "2-threads"])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_is_that_of_a_plain_loop(shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight = naive_weight(torch.randn(shape))
    x, bias = torch.randn(6, shape[1]).to(dtype), torch.randn(shape[0]).to(dtype)
    out = linear(x, weight, bias)
    assert out.dtype is dtype
    assert torch.equal(out, naive_linear(x, weight, bias))
    assert torch.equal(linear(x, weight, None), naive_linear(x, weight))


@pytest.mark.usefixtures("num_threads")
@pytest.mark.parametrize("shape", [(960, 576), (50, 1024), (33, 50), (64, 5000)])
def test_a_row_has_its_bits_in_any_company(shape: tuple[int, int]) -> None:
    weight, x = Int8Weight(*quantize_rows(torch.randn(shape))), torch.randn(256, shape[1])
    expected = int8_linear(x, weight, None)
    for start, end in [(0, 1), (5, 6), (3, 5), (1, 10), (0, 16), (7, 24), (0, 64), (2, 131)]:
        assert torch.equal(int8_linear(x[start:end], weight, None), expected[start:end]), (start, end)


def test_of_two_neighbours_the_even_one_is_taken() -> None:
    values, scale = quantize_rows(torch.tensor([[127, 0.5, 1.5, 2.5, -0.5, -1.5, -127]]))
    assert values.tolist() == [[127, 0, 2, 2, 0, -2, -127]]
    assert scale.tolist() == [1]


def test_integers_are_those_in_the_page_of_the_npu_operation() -> None:
    """The example of torch_npu.npu_dynamic_quant in op-plugin's documentation."""
    x = [[0.7261, 0.3726, 0.9126], [0.9023, 0.9990, 0.1279], [0.8628, 0.6240, 0.9028]]
    values, scale = quantize_rows(torch.tensor(x, dtype=torch.float16))
    assert values.tolist() == [[101, 52, 127], [115, 127, 16], [121, 88, 127]]
    assert [round(each, 4) for each in scale.tolist()] == [0.0072, 0.0079, 0.0071]


@pytest.mark.parametrize("value", [0.0, 2**-149], ids=["zero", "smaller-than-a-scale"])
def test_a_row_without_size_gives_the_bias(value: float) -> None:
    x, weight, bias = torch.full((2, 16), value), naive_weight(torch.randn(8, 16)), torch.randn(8)
    values, scale = quantize_rows(x)
    assert (values.unique().tolist(), scale.tolist()) == ([0], [1, 1])
    assert torch.equal(int8_linear(x, weight, bias), bias.expand(2, -1))


def test_integers_keep_to_their_range_where_a_scale_is_coarse() -> None:
    """190 of the smallest float32 / 127 is one of them."""
    values, scale = quantize_rows(torch.tensor([[190 * 2**-149, -190 * 2**-149]]))
    assert (values.tolist(), scale.tolist()) == ([[127, -127]], [2**-149])


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_row_with_a_value_that_is_no_number_is_not_taken_for_right(value: float) -> None:
    weight, x = naive_weight(torch.randn(8, 16)), torch.randn(3, 16)
    expected = int8_linear(x, weight, None)
    x[1, 4] = value
    out = int8_linear(x, weight, None)
    assert not out[1].isfinite().any()
    assert torch.equal(out[::2], expected[::2])


def test_no_rows_give_none() -> None:
    assert int8_linear(torch.empty(0, 16), naive_weight(torch.randn(8, 16)), None).shape == (0, 8)


def test_x_may_have_any_strides() -> None:
    weight, x = naive_weight(torch.randn(8, 16)), torch.randn(16, 5).t()
    assert torch.equal(int8_linear(x, weight, None), int8_linear(x.contiguous(), weight, None))


@pytest.mark.parametrize("product", [exact_product(CPU), by_chunks])
@pytest.mark.parametrize("weight", [127, -128])
@pytest.mark.parametrize("num_inputs", [1023, 1024, 1025, 2**17])
def test_the_largest_sums_are_exact(product: Product, weight: int, num_inputs: int) -> None:
    x = torch.full((3, num_inputs), 127, dtype=torch.int8)
    weights = torch.full((2, num_inputs), weight, dtype=torch.int8)
    weights[:, 0] = 2  # or all partial sums would be multiples of one number, which float32 holds longer
    assert product(x, weights).tolist() == [[127 * (weight * (num_inputs - 1) + 2)] * 2] * 3


ON_AN_OLD_CPU = """
import torch
from kernels.reference.int8_linear import exact_product
x = torch.full((64, 512), 127, dtype=torch.int8)
print(exact_product(torch.device("cpu"))(x, x).unique().tolist())
"""


def test_sums_are_exact_on_a_cpu_that_multiplies_bytes_in_16_bits() -> None:
    """oneDNN keeps to the instructions of the variable; other makers' CPUs do not know it, and pass."""
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    result = subprocess.run([sys.executable, "-c", ON_AN_OLD_CPU], env=environment, capture_output=True, text=True)
    assert result.stdout.strip() == str([127 * 127 * 512]), result.stderr


def test_a_product_that_is_not_exact_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels.reference.int8_linear.at_once", lambda x, weight: at_once(x, weight).clamp(max=2**15))
    exact_product.cache_clear()
    try:
        assert exact_product(CPU) is by_chunks
    finally:
        exact_product.cache_clear()
