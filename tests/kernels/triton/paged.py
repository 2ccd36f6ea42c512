# SPDX-License-Identifier: Apache-2.0
"""A paged cache with random rows in it, for a Triton backend and for the reference.

What no query sees is NaN in both: unseen slots, blocks that windows have left behind, blocks of nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from kernels import Shape
from kernels import reference as ops
from kernels.paged_rows import PagedRows
from kernels.triton.attention_plan import AttentionPlan
from kernels.triton.backend import TritonBackend
from tests.kernels.triton import DEVICE

SCALE = 0.3


@dataclass(frozen=True)
class Case:
    """rows: (context length, number of queries) of each."""

    rows: tuple[tuple[int, int], ...]
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    block_tokens: int = 16
    window: int | None = None
    cap: float | None = None
    table_width: int | None = None
    dtype: torch.dtype = torch.float32

    @property
    def shape(self) -> Shape:
        return Shape(self.num_heads, self.num_kv_heads, self.head_dim, self.block_tokens, self.dtype)

    def first_seen(self, context_len: int, num_queries: int) -> int:
        return 0 if self.window is None else max(0, context_len - num_queries - self.window + 1)


@dataclass(frozen=True, eq=False)
class Paged:
    case: Case
    q: Tensor  # [N, H, D]
    k_cache: Tensor  # [blocks, S, K, D]
    v_cache: Tensor
    rows: PagedRows

    def plan(self, backend: TritonBackend) -> AttentionPlan:
        case = self.case
        return backend.attention_plan(self.rows, case.block_tokens, case.num_heads, case.num_kv_heads, case.window)

    def attend(self, backend: TritonBackend) -> Tensor:
        return backend.attention(self.q, self.k_cache, self.v_cache, self.plan(backend), SCALE, self.case.cap)

    def expected(self) -> Tensor:
        case = self.case
        q, rows = self.q.cpu(), on(self.rows, torch.device("cpu"))
        caches = (cache.cpu().transpose(1, 2).contiguous() for cache in (self.k_cache, self.v_cache))
        plan = ops.attention_plan(rows, case.block_tokens, case.num_heads, case.num_kv_heads, case.window)
        return ops.attention(q, *caches, plan, SCALE, case.cap)


def paged(case: Case, seed: int = 0) -> Paged:
    torch.manual_seed(seed)
    counts = [-(-context_len // case.block_tokens) for context_len, _ in case.rows]
    blocks = torch.randperm(sum(counts) + 2)
    width = max([*counts, 1]) if case.table_width is None else case.table_width
    tables = torch.full((len(case.rows), width), int(blocks[-1]))  # the last is nobody's
    shape = (len(blocks), case.block_tokens, case.num_kv_heads, case.head_dim)
    caches = [torch.full(shape, torch.nan).to(case.dtype) for _ in range(2)]
    used = 0
    for table, count, (context_len, num_queries) in zip(tables, counts, case.rows, strict=True):
        first = case.first_seen(context_len, num_queries)
        behind = first // case.block_tokens
        table[behind:count] = blocks[used + behind : used + count]
        used += count
        for cache in caches:
            tokens = cache[table[:count]].flatten(0, 1)
            tokens[first:context_len] = torch.randn(context_len - first, *shape[2:]).to(case.dtype)
            cache[table[behind:count]] = tokens.unflatten(0, (count, case.block_tokens))[behind:]
    offsets = (0, *torch.tensor([n for _, n in case.rows]).cumsum(0).tolist())
    q = torch.randn(offsets[-1], case.num_heads, case.head_dim).to(case.dtype).to(DEVICE)
    rows = paged_rows(torch.zeros(len(q)), tables, offsets, tuple(n for n, _ in case.rows))
    return Paged(case, q, caches[0].to(DEVICE), caches[1].to(DEVICE), on(rows, DEVICE))


def paged_rows(slots: Tensor, tables: Tensor, offsets: tuple[int, ...], context_lens: tuple[int, ...]) -> PagedRows:
    return PagedRows(
        slots.int(),
        tables.int(),
        offsets,
        context_lens,
        torch.tensor(offsets, dtype=torch.int32),
        torch.tensor(context_lens, dtype=torch.int32),
    )


def on(rows: PagedRows, device: torch.device) -> PagedRows:
    return PagedRows(
        rows.slots.to(device),
        rows.block_tables.to(device),
        rows.offsets,
        rows.context_lens,
        rows.offsets_on_device.to(device),
        rows.context_lens_on_device.to(device),
    )


def by_row(out: Tensor, rows: PagedRows) -> list[Tensor]:
    return [out[start:end] for start, end in pairwise(rows.offsets)]
