# SPDX-License-Identifier: Apache-2.0
"""Attention of plain torch operations, for shapes that no fused operation of the chip takes: the reference's own.

Laid out by the host anew for each step, which waits for the device: right, not fast.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kernels.paged_rows import PagedRows
from kernels.reference.attention import attention, new_cache, store_kv
from kernels.reference.attention_plan import AttentionPlan, attention_plan


class ComposedAttention:
    can_graph = False

    def new_cache(
        self,
        num_blocks: int,
        block_tokens: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> tuple[Tensor, Tensor]:
        return new_cache(num_blocks, block_tokens, num_kv_heads, head_dim, dtype, device)

    def plan(
        self, rows: PagedRows, block_tokens: int, num_heads: int, num_kv_heads: int, window: int | None
    ) -> AttentionPlan:
        return attention_plan(rows, block_tokens, num_heads, num_kv_heads, window)

    def store(self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, plan: AttentionPlan) -> None:
        store_kv(k, v, k_cache, v_cache, plan)

    def attention(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, plan: AttentionPlan, scale: float, cap: float | None
    ) -> Tensor:
        return attention(q, k_cache, v_cache, plan, scale, cap)

    def graph_update(self, context_lens: tuple[int, ...]) -> list[dict[str, Any]]:
        raise AssertionError("no graph is made of these operations")
