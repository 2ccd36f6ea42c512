# SPDX-License-Identifier: Apache-2.0
"""Queries, keys and values from a qkv product, turned and stored, against the reference."""

import pytest
import torch
from torch import Tensor

from kernels import Shape
from kernels import reference as ops
from kernels.triton.backend import TritonBackend
from tests.kernels.triton import DEVICE
from tests.kernels.triton.paged import on, paged_rows

BLOCK_TOKENS = 4
NUM_BLOCKS = 5
SLOTS = [17, 3, 4, 0, 19]
CPU = torch.device("cpu")


def results(
    backend: object, qkv: Tensor, norms: tuple[Tensor, Tensor] | None, heads: tuple[int, int, int], device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [N, H, D], keys and values [N, K, D] as they lie in the cache."""
    num_heads, num_kv_heads, head_dim = heads
    num_tokens = len(qkv)
    rows = on(paged_rows(torch.tensor(SLOTS[:num_tokens]), torch.zeros(1, 2), (0, num_tokens), (8,)), device)
    k_cache, v_cache = backend.new_cache(NUM_BLOCKS, BLOCK_TOKENS, num_kv_heads, head_dim, qkv.dtype, device)
    plan = backend.attention_plan(rows, BLOCK_TOKENS, num_heads, num_kv_heads, None)
    torch.manual_seed(1)
    angles = [torch.randn(num_tokens, head_dim).to(qkv.dtype).to(device) for _ in range(2)]
    norms = None if norms is None else (norms[0].to(device), norms[1].to(device))
    q = backend.rope_and_store(qkv.to(device), norms, 1e-6, *angles, k_cache, v_cache, plan)
    if backend is ops:
        k_cache, v_cache = k_cache.transpose(1, 2), v_cache.transpose(1, 2)
    stored = (cache.reshape(-1, num_kv_heads, head_dim)[SLOTS[:num_tokens]].cpu() for cache in (k_cache, v_cache))
    return q.cpu(), *stored


@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize("heads", [(3, 1, 64), (4, 4, 80), (20, 5, 128), (1, 1, 2)])
@pytest.mark.parametrize("num_tokens", [0, 1, 5])
def test_q_k_v(heads: tuple[int, int, int], num_tokens: int, has_norms: bool) -> None:
    num_heads, num_kv_heads, head_dim = heads
    torch.manual_seed(0)
    qkv = torch.randn(num_tokens, (num_heads + 2 * num_kv_heads) * head_dim)
    norms = (torch.randn(head_dim), torch.randn(head_dim)) if has_norms else None
    backend = TritonBackend(DEVICE, Shape(*heads, BLOCK_TOKENS, torch.float32))
    got, expected = results(backend, qkv, norms, heads, DEVICE), results(ops, qkv, norms, heads, CPU)
    for tensor, other in zip(got, expected, strict=True):
        torch.testing.assert_close(tensor, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types(dtype: torch.dtype) -> None:
    heads = (4, 2, 64)
    qkv = torch.randn(3, 8 * 64).to(dtype)
    norms = torch.randn(64).to(dtype), torch.randn(64).to(dtype)
    backend = TritonBackend(DEVICE, Shape(*heads, BLOCK_TOKENS, dtype))
    got, expected = results(backend, qkv, norms, heads, DEVICE), results(ops, qkv, norms, heads, CPU)
    for tensor, other in zip(got, expected, strict=True):
        torch.testing.assert_close(tensor, other, rtol=5e-2, atol=5e-2)
    assert torch.equal(got[2], expected[2])  # values are as they came


def test_only_the_given_slots_are_written() -> None:
    backend = TritonBackend(DEVICE, Shape(2, 1, 64, BLOCK_TOKENS, torch.float32))
    cache = torch.full((NUM_BLOCKS, BLOCK_TOKENS, 1, 64), -7.0, device=DEVICE)
    k_cache, v_cache = cache.clone(), cache.clone()
    rows = on(paged_rows(torch.tensor([6]), torch.zeros(1, 2), (0, 1), (8,)), DEVICE)
    plan = backend.attention_plan(rows, BLOCK_TOKENS, 2, 1, None)
    qkv, angles = torch.randn(1, 256, device=DEVICE), torch.ones(1, 64, device=DEVICE)
    backend.rope_and_store(qkv, None, 1e-6, angles, angles, k_cache, v_cache, plan)
    for written in (k_cache, v_cache):
        assert (written != cache).flatten(0, 2).any(-1).nonzero().tolist() == [[6]]
