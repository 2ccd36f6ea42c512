# SPDX-License-Identifier: Apache-2.0
"""Compiles every kernel by calling every operation, of models' usual sizes, with a driver that runs nothing.

A program of its own, for Triton decides at import whether it compiles or interprets. Prints a line for each kernel.
"""

from __future__ import annotations

import torch

from kernels import Shape
from kernels.sampling_rows import SamplingRows
from kernels.triton.backend import TritonBackend
from tests.kernels.triton import compiling_driver
from tests.kernels.triton.paged import paged_rows

CPU = torch.device("cpu")
BLOCK_TOKENS = 16
# (query heads, key heads, head size, hidden size, type): of Qwen3-0.6B and 14B, SmolLM2, Llama 3.2, Phi-2, Gemma 2.
SHAPES = [
    (16, 8, 128, 1024, torch.bfloat16),
    (40, 8, 128, 5120, torch.float16),
    (9, 3, 64, 576, torch.float32),
    (32, 8, 64, 2048, torch.bfloat16),
    (32, 32, 80, 2560, torch.bfloat16),
    (8, 4, 256, 2304, torch.bfloat16),
]


def build(num_heads: int, num_kv_heads: int, head_dim: int, hidden: int, dtype: torch.dtype) -> None:
    backend = TritonBackend(CPU, Shape(num_heads, num_kv_heads, head_dim, BLOCK_TOKENS, dtype))
    x, weight = torch.zeros(5, hidden, dtype=dtype), torch.zeros(hidden, dtype=dtype)
    backend.embed(x, torch.zeros(5, dtype=torch.int32), 2.0)
    backend.embed_rms_norm(x, torch.zeros(5, dtype=torch.int32), 2.0, weight, 1e-6)
    backend.rms_norm(x, weight, 1e-6)
    backend.add_rms_norm(x, x.clone(), weight, 1e-6)
    backend.silu_mul(torch.zeros(5, 6 * hidden, dtype=dtype))
    backend.gelu_tanh_mul(torch.zeros(5, 6 * hidden, dtype=dtype))
    caches = backend.new_cache(128, BLOCK_TOKENS, num_kv_heads, head_dim, dtype, CPU)
    qkv = torch.zeros(5, (num_heads + 2 * num_kv_heads) * head_dim, dtype=dtype)
    angles, head_weight = torch.zeros(5, head_dim, dtype=dtype), torch.zeros(head_dim, dtype=dtype)
    tables = torch.zeros(2, 128, dtype=torch.int32)
    for offsets in ((0, 4, 5), (0, 1, 2)):
        for window, cap in ((None, None), (1500, 30.0)):
            rows = paged_rows(torch.zeros(offsets[-1]), tables, offsets, (2000, 9))
            plan = backend.attention_plan(rows, BLOCK_TOKENS, num_heads, num_kv_heads, window)
            for norms in (None, (head_weight, head_weight)):
                q = backend.rope_and_store(qkv, norms, 1e-6, angles, angles, *caches, plan)
            backend.attention(q[: offsets[-1]], *caches, plan, 0.1, cap)


def build_sampler() -> None:
    backend = TritonBackend(CPU, Shape(1, 1, 64, BLOCK_TOKENS, torch.float32))
    floats, ints = torch.zeros(4), torch.zeros(4, dtype=torch.int32)
    rows = SamplingRows(floats, ints, ints, floats, torch.zeros(2, 4, dtype=torch.int32), (0,), (1,), (2, 3), 4)
    for vocabulary_size in (151_936, 49_152, 32_001):
        backend.choose(torch.zeros(4, vocabulary_size), rows)


if __name__ == "__main__":
    driver = compiling_driver.install()
    for shape in SHAPES:
        build(*shape)
    build_sampler()
    for built in driver.built:
        print(built)
