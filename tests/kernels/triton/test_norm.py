# SPDX-License-Identifier: Apache-2.0
"""Embedding, addition and RMS norm in one kernel, against the reference."""

import dataclasses

import pytest
import torch
from torch import Tensor

from kernels import reference as ops
from kernels.triton import norm
from kernels.triton.cores import Cores, cores_of
from tests.kernels.triton import DEVICE

EPS = 1e-6
WIDTHS = [1, 96, 100, 576]
CORES = cores_of(DEVICE)
# A tile holds 128 values, so that a row takes several.
FEW_BYTES = dataclasses.replace(CORES, tile_bytes=2048)


def check(got: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for tensor, other in zip(got, expected, strict=True):
        torch.testing.assert_close(tensor.cpu(), other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("cores", [CORES, FEW_BYTES], ids=["one tile", "tiles"])
def test_norm_after_each_source(width: int, cores: Cores) -> None:
    x, residual, weight = torch.randn(5, width), torch.randn(5, width), torch.randn(width)
    token_ids = torch.tensor([4, 0, 4], dtype=torch.int32)
    there = [tensor.to(DEVICE) for tensor in (x, residual, weight)]
    ids_there = token_ids.to(DEVICE)
    check((norm.rms_norm(there[0], there[2], EPS, cores),), (ops.rms_norm(x, weight, EPS),))
    check((norm.embed(there[0], ids_there, 1.0, cores),), (ops.embed(x, token_ids, 1.0),))
    check(
        norm.embed_rms_norm(there[0], ids_there, 3.5, there[2], EPS, cores),
        ops.embed_rms_norm(x, token_ids, 3.5, weight, EPS),
    )
    expected = ops.add_rms_norm(x.clone(), residual.clone(), weight, EPS)
    check(norm.add_rms_norm(*there, EPS, cores), expected)


def test_no_rows() -> None:
    weight = torch.randn(96, device=DEVICE)
    assert norm.rms_norm(torch.randn(0, 96, device=DEVICE), weight, EPS, CORES).shape == (0, 96)


def test_leading_dimensions_and_strides() -> None:
    x, weight = torch.randn(3, 4, 32), torch.randn(32)
    out = norm.rms_norm(x.to(DEVICE)[:, 1:3], weight.to(DEVICE), EPS, CORES)
    check((out,), (ops.rms_norm(x[:, 1:3], weight, EPS),))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types(dtype: torch.dtype) -> None:
    """To a step of the type: the interpreter does not round to the nearest bfloat16."""
    x, residual, weight = (torch.randn(size).to(dtype) for size in ((3, 96), (3, 96), (96,)))
    expected = ops.add_rms_norm(x.clone(), residual.clone(), weight, EPS)
    got = norm.add_rms_norm(x.to(DEVICE), residual.to(DEVICE), weight.to(DEVICE), EPS, CORES)
    for tensor, other in zip(got, expected, strict=True):
        assert tensor.dtype == dtype
        torch.testing.assert_close(tensor.cpu(), other, rtol=2e-2, atol=2e-2)
