# SPDX-License-Identifier: Apache-2.0
"""Attention of ragged rows over a paged cache, against the reference."""

import dataclasses

import pytest
import torch

from kernels.triton import attention as launches
from kernels.triton.backend import TritonBackend
from tests.kernels.triton import DEVICE
from tests.kernels.triton.paged import Case, Paged, by_row, on, paged

close = torch.testing.assert_close


def backend_of(case: Case) -> TritonBackend:
    return TritonBackend(DEVICE, case.shape)


def check(case: Case) -> None:
    made = paged(case)
    close(made.attend(backend_of(case)).cpu(), made.expected(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("block_tokens", [16, 32, 128])
@pytest.mark.parametrize("window", [None, 9])
def test_context_ends_around_block_edges(block_tokens: int, window: int | None) -> None:
    edges = [block_tokens - 1, block_tokens, block_tokens + 1]
    rows = tuple((context_len, num_queries) for context_len in edges for num_queries in (1, 3))
    check(Case(rows, num_heads=2, num_kv_heads=1, block_tokens=block_tokens, window=window))


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(3, 3), (6, 2), (5, 1)])
@pytest.mark.parametrize("head_dim", [64, 80, 128])
def test_head_groups_and_sizes(num_heads: int, num_kv_heads: int, head_dim: int) -> None:
    check(Case(((7, 7), (40, 1)), num_heads, num_kv_heads, head_dim))


def test_whole_prompts_chunks_and_single_queries_in_one_step() -> None:
    check(Case(((70, 70), (33, 1), (100, 40), (1, 1), (48, 48)), cap=20.0))


def test_rows_without_queries_change_nothing() -> None:
    check(Case(((5, 0), (9, 2), (17, 0), (3, 1), (4, 0))))


@pytest.mark.parametrize("rows", [(), ((4, 0),)])
def test_a_step_without_queries(rows: tuple[tuple[int, int], ...]) -> None:
    assert paged(case := Case(rows)).attend(backend_of(case)).shape == (0, 4, 64)


@pytest.mark.parametrize("window", [1, 16, 17, 40])
def test_windows_within_a_chunk(window: int) -> None:
    """Blocks that the window has left behind are NaN."""
    check(Case(((90, 30), (77, 1), (16, 16)), num_heads=2, num_kv_heads=1, window=window))


@pytest.mark.parametrize("cap", [0.5, 50.0])
def test_capped_scores(cap: float) -> None:
    check(Case(((40, 5), (35, 1)), cap=cap))


@pytest.mark.parametrize("num_queries", [1, 2])
def test_a_long_context(num_queries: int) -> None:
    check(Case(((4096, num_queries),), num_heads=1, num_kv_heads=1, block_tokens=128))


@pytest.mark.parametrize("window", [None, 1, 1024, 1025, 1026, 1500])
def test_single_queries_over_parts_of_the_context(window: int | None) -> None:
    rows = ((1023, 1), (1024, 1), (1025, 1), (2, 1), (2100, 1))
    check(Case(rows, num_heads=1, num_kv_heads=1, block_tokens=128, window=window))


def test_single_queries_in_parts_beside_a_chunk() -> None:
    check(Case(((1100, 1), (20, 4), (9, 0)), num_heads=3, num_kv_heads=1, block_tokens=128))


def test_a_rows_bits_do_not_depend_on_other_rows_or_on_the_tables_width() -> None:
    case = Case(((1100, 1), (30, 6), (40, 1), (21, 21)), num_heads=2, num_kv_heads=1, block_tokens=128)
    together = paged(case)
    backend = backend_of(case)
    results = by_row(together.attend(backend), together.rows)
    for i, expected in enumerate(results):
        alone = alone_in(together, i, width=-(-case.rows[i][0] // case.block_tokens))
        assert torch.equal(alone.attend(backend), expected)


def test_a_querys_bits_do_not_depend_on_the_chunk_it_comes_in() -> None:
    """Its window begins where it did; the chunk's does not."""
    made = paged(case := Case(((90, 30),), window=20))
    backend = backend_of(case)
    lens = torch.tensor([0, 9], dtype=torch.int32, device=DEVICE)
    last = dataclasses.replace(made.rows, offsets=(0, 9), offsets_on_device=lens)
    part = dataclasses.replace(made, q=made.q[-9:], rows=last)
    assert torch.equal(part.attend(backend), made.attend(backend)[-9:])


def alone_in(made: Paged, i: int, width: int) -> Paged:
    rows = made.rows
    start, end = rows.offsets[i : i + 2]
    alone = dataclasses.replace(
        rows,
        slots=rows.slots[start:end],
        block_tables=rows.block_tables[i : i + 1, :width].contiguous(),
        offsets=(0, end - start),
        context_lens=rows.context_lens[i : i + 1],
        offsets_on_device=torch.tensor([0, end - start], dtype=torch.int32),
        context_lens_on_device=rows.context_lens_on_device[i : i + 1].clone(),
    )
    return dataclasses.replace(made, q=made.q[start:end], rows=on(alone, DEVICE))


def test_lengths_are_read_on_the_device_when_it_runs() -> None:
    """A captured step is replayed with new ones."""
    case = Case(((20, 1), (50, 1)))
    made, backend = paged(case), backend_of(case)
    plan = made.plan(backend)
    made.rows.context_lens_on_device.copy_(torch.tensor([7, 33]))
    now = dataclasses.replace(made, rows=dataclasses.replace(made.rows, context_lens=(7, 33)))
    out = backend.attention(made.q, made.k_cache, made.v_cache, plan, 0.3, None)
    close(out.cpu(), now.expected(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types(dtype: torch.dtype) -> None:
    made = paged(case := Case(((40, 5), (35, 1)), dtype=dtype))
    out = made.attend(backend_of(case))
    assert out.dtype == dtype
    close(out.float().cpu(), made.expected().float(), rtol=2e-2, atol=2e-2)


def test_tiles_that_the_chips_memory_bounds() -> None:
    made = paged(case := Case(((70, 40), (35, 1)), head_dim=128))
    backend = backend_of(case)
    backend.cores = dataclasses.replace(backend.cores, tile_bytes=48 << 10)
    backend.layout = launches.layout_for(4, 2, 128, case.dtype, backend.cores)
    assert (backend.layout.tile_rows, backend.layout.tile_tokens) == (16, 16)
    close(made.attend(backend).cpu(), made.expected(), rtol=1e-5, atol=1e-5)
