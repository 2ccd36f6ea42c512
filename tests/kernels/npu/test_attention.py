# SPDX-License-Identifier: Apache-2.0
"""Rope, the paged cache and attention against the reference in float32: ragged batches, block edges, windows, caps.

What no query may see is NaN: the rest of a block, and the block that tables name where a window has left theirs behind.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import Backend, Shape, reference
from kernels.paged_rows import PagedRows
from tests.kernels.npu.conftest import A2, A3, P310, LoadNpu

CPU = torch.device("cpu")
PREFILL = ((0, 1), (0, 33), (0, 16))
DECODE = ((0, 1), (15, 16), (16, 17), (200, 201))
MIXED = ((40, 41), (0, 17), (30, 60), (129, 130), (64, 128))
STEPS = {"prefill": PREFILL, "decode": DECODE, "mixed": MIXED, "one": ((5, 6),)}
TOLERANCE = {torch.float16: 1e-2, torch.bfloat16: 6e-2, torch.float32: 1e-4}
of_each_step = pytest.mark.parametrize("step", STEPS)


@dataclass(frozen=True)
class Case:
    """Rows whose positions [start, end) are computed, after those before."""

    rows: tuple[tuple[int, int], ...]
    shape: Shape
    window: int | None = None
    cap: float | None = None
    has_norms: bool = True


def paged_rows(slots: Tensor, tables: Tensor, lens: list[int], ends: list[int]) -> PagedRows:
    offsets = (0, *accumulate(lens))
    return PagedRows(slots.int(), tables, offsets, tuple(ends), torch.tensor(offsets).int(), torch.tensor(ends).int())


def computed(ops: Any, case: Case, dtype: torch.dtype) -> Tensor:
    """[N, H, D] of the same numbers at every call, rounded to the shape's type and computed in dtype."""
    torch.manual_seed(0)
    shape = case.shape
    counts = [-(-end // shape.block_tokens) for _, end in case.rows]
    blocks = torch.randperm(sum(counts) + 2, dtype=torch.int32)
    tables = blocks[-1].repeat(len(case.rows), max(counts) + 1)  # the last one is nobody's
    slots = []
    for row, (count, own) in enumerate(zip(counts, blocks.split([*counts, 2]), strict=False)):
        tables[row, :count] = own
        slots.append((own[:, None] * shape.block_tokens + torch.arange(shape.block_tokens)).flatten())
    heads = shape.num_heads + 2 * shape.num_kv_heads
    qkv = [torch.randn(end, heads * shape.head_dim).to(shape.dtype).to(dtype) for _, end in case.rows]
    angles = torch.rand(max(end for _, end in case.rows), shape.head_dim // 2).repeat(1, 2) * 6
    cos, sin = angles.cos().to(shape.dtype).to(dtype), angles.sin().to(shape.dtype).to(dtype)
    norms = tuple((torch.rand(2, shape.head_dim) + 0.5).to(shape.dtype).to(dtype)) if case.has_norms else None
    caches = ops.new_cache(len(blocks), shape.block_tokens, shape.num_kv_heads, shape.head_dim, dtype, CPU)
    for cache in caches:
        cache.fill_(torch.nan)

    def run(spans: list[tuple[int, int, int]], window: int | None) -> tuple[Tensor, Any]:
        """spans: (row, start, end). The queries, and the plan."""
        lens, ends = [end - start for _, start, end in spans], [end for _, _, end in spans]
        places = torch.cat([slots[row][start:end] for row, start, end in spans])
        rows = paged_rows(places, tables[[row for row, _, _ in spans]], lens, ends)
        plan = ops.attention_plan(rows, shape.block_tokens, shape.num_heads, shape.num_kv_heads, window)
        positions = torch.cat([torch.arange(start, end) for _, start, end in spans])
        new = torch.cat([qkv[row][start:end] for row, start, end in spans])
        return ops.rope_and_store(new, norms, 1e-6, cos[positions], sin[positions], *caches, plan), plan

    if earlier := [(row, 0, start) for row, (start, _) in enumerate(case.rows) if start]:
        run(earlier, None)
    for table, (start, _) in zip(tables, case.rows, strict=True):
        if case.window is not None:
            table[: max(0, start - case.window + 1) // shape.block_tokens] = blocks[-1]
    q, plan = run([(row, start, end) for row, (start, end) in enumerate(case.rows)], case.window)
    return ops.attention(q, *caches, plan, shape.head_dim**-0.5, case.cap)


def check(ops: Backend, case: Case) -> None:
    actual = computed(ops, case, case.shape.dtype)
    expected = computed(reference, case, torch.float32)
    assert actual.dtype is case.shape.dtype
    tolerance = TOLERANCE[actual.dtype]
    torch.testing.assert_close(actual.float(), expected, rtol=tolerance, atol=tolerance)


def case_of(step: str, **shape: Any) -> Case:
    defaults = {"num_heads": 4, "num_kv_heads": 2, "head_dim": 128, "block_tokens": 16, "dtype": torch.float16}
    return Case(STEPS[step], Shape(**{**defaults, **shape}))


@of_each_step
@pytest.mark.parametrize("soc", [A2, A3, P310])
@pytest.mark.parametrize("block_tokens", [16, 48, 128])
def test_steps_and_blocks(load_npu: LoadNpu, soc: str, step: str, block_tokens: int) -> None:
    case = case_of(step, block_tokens=block_tokens)
    check(load_npu(soc, **vars(case.shape)), case)


@of_each_step
@pytest.mark.parametrize("heads", [(2, 2, 192), (6, 1, 128)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_fused_heads_and_types(load_npu: LoadNpu, step: str, heads: tuple[int, int, int], dtype: torch.dtype) -> None:
    num_heads, num_kv_heads, head_dim = heads
    case = case_of(step, num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype)
    check(load_npu(A2, **vars(case.shape)), replace(case, has_norms=False))


@of_each_step
@pytest.mark.parametrize("window", [1, 16, 23, 100])
@pytest.mark.parametrize("soc", [A2, P310])
def test_windows(load_npu: LoadNpu, soc: str, step: str, window: int) -> None:
    case = case_of(step, windows=(window,))
    check(load_npu(soc, **vars(case.shape)), replace(case, window=window))


@of_each_step
@pytest.mark.parametrize("soc", [A2, P310])
def test_a_layer_without_a_window_beside_those_with_one(load_npu: LoadNpu, soc: str, step: str) -> None:
    case = case_of(step, windows=(23,))
    check(load_npu(soc, **vars(case.shape)), case)


@of_each_step
@pytest.mark.parametrize(
    "shape",
    [
        {"head_dim": 64},
        {"head_dim": 96, "block_tokens": 12},
        {"head_dim": 128, "dtype": torch.float32},
        {"head_dim": 128, "num_heads": 65, "num_kv_heads": 1},
    ],
    ids=str,
)
def test_composed_path(load_npu: LoadNpu, step: str, shape: dict[str, Any]) -> None:
    case = case_of(step, **shape)
    check(load_npu(A2, **vars(case.shape)), replace(case, window=23))


@of_each_step
@pytest.mark.parametrize("soc", [A2, P310])
def test_caps(load_npu: LoadNpu, soc: str, step: str) -> None:
    case = case_of(step, has_cap=True)
    check(load_npu(soc, **vars(case.shape)), replace(case, cap=2.0))


@of_each_step
@pytest.mark.parametrize("head_dim", [64, 80])
def test_310p_heads(load_npu: LoadNpu, step: str, head_dim: int) -> None:
    case = case_of(step, head_dim=head_dim, num_heads=6, num_kv_heads=3)
    check(load_npu(P310, **vars(case.shape)), case)


@pytest.mark.parametrize(
    ("step", "soc", "operation"),
    [
        ("decode", A2, "npu_fused_infer_attention_score"),
        ("mixed", A2, "npu_fused_infer_attention_score"),
        ("decode", P310, "_npu_paged_attention"),
        ("mixed", P310, "_npu_paged_attention_splitfuse_v2"),
    ],
)
def test_a_step_is_one_operation(
    load_npu: LoadNpu, monkeypatch: pytest.MonkeyPatch, step: str, soc: str, operation: str
) -> None:
    case = case_of(step)
    ops, called = load_npu(soc, **vars(case.shape)), []
    for name in [name for name in vars(sys.modules["torch_npu"]) if "attention" in name]:
        monkeypatch.setattr(sys.modules["torch_npu"], name, recorded(name, called))
    computed(ops, case, case.shape.dtype)
    assert called == [operation]


def recorded(name: str, called: list[str]) -> Callable[..., Any]:
    original = getattr(sys.modules["torch_npu"], name)

    def call(*args: Any, **kwargs: Any) -> Any:
        called.append(name)
        return original(*args, **kwargs)

    return call
