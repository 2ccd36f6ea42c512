# SPDX-License-Identifier: Apache-2.0
"""Attention over a cache in FRACTAL_NZ, [blocks, K * D / 16, S, 16], for Atlas inference cards (Ascend310P).

How arguments are laid out follows vllm-ascend. Decode steps and steps with longer rows are two operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch_npu
from torch import Tensor

from kernels.paged_rows import PagedRows

FRACTAL_NZ = 29
NZ_WIDTH = 16
MASK_SIZE = 2048
# A score that a masked one becomes: what the operation adds is the mask.
HIDDEN = -10000
# The mask is one triangle for rows of any length, in a paged cache.
COMPRESSED_PAGED = 5


@dataclass(frozen=True, eq=False)
class NzPlan:
    slots: Tensor  # int32 [N]
    block_tables: Tensor  # int32 [B, M]
    context_lens: Tensor  # int32 [B]
    num_kv_heads: int
    num_queries: Tensor | None  # int32 [B], on the host; None for decode steps


class NzAttention:
    # It is made of operations that the device's graphs do not take.
    can_graph = False

    def __init__(self, device: torch.device) -> None:
        ones = torch.ones(MASK_SIZE, MASK_SIZE, dtype=torch.float16)
        self.mask = ones.triu_(1).mul_(HIDDEN).to(device)

    def new_cache(
        self,
        num_blocks: int,
        block_tokens: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> tuple[Tensor, Tensor]:
        shape = (num_blocks, num_kv_heads * head_dim // NZ_WIDTH, block_tokens, NZ_WIDTH)
        k_cache, v_cache = (
            torch_npu.npu_format_cast(torch.zeros(shape, dtype=dtype, device=device), FRACTAL_NZ) for _ in range(2)
        )
        return k_cache, v_cache

    def plan(self, rows: PagedRows, block_tokens: int, num_heads: int, num_kv_heads: int, window: int | None) -> NzPlan:
        assert window is None, "takes the composed path"
        num_queries = None if rows.is_decode else torch.tensor(rows.offsets, dtype=torch.int32).diff()
        return NzPlan(rows.slots, rows.block_tables, rows.context_lens_on_device, num_kv_heads, num_queries)

    def store(self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, plan: NzPlan) -> None:
        torch_npu._npu_reshape_and_cache(
            key=k, value=v, key_cache=k_cache, value_cache=v_cache, slot_indices=plan.slots
        )

    def attention(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, plan: NzPlan, scale: float, cap: float | None
    ) -> Tensor:
        assert cap is None, "takes the composed path"
        out = torch.empty_like(q)
        if plan.num_queries is None:
            torch_npu._npu_paged_attention(
                query=q,
                key_cache=k_cache,
                value_cache=v_cache,
                num_kv_heads=plan.num_kv_heads,
                num_heads=q.shape[1],
                scale_value=scale,
                block_table=plan.block_tables,
                context_lens=plan.context_lens,
                out=out,
            )
            return out
        torch_npu._npu_paged_attention_splitfuse_v2(
            query=q,
            key_cache=k_cache,
            value_cache=v_cache,
            block_table=plan.block_tables,
            context_lens=plan.context_lens,
            mask=self.mask,
            seq_len=plan.num_queries,
            num_kv_heads=plan.num_kv_heads,
            num_heads=q.shape[1],
            scale_value=scale,
            mask_type=COMPRESSED_PAGED,
            out=out,
        )
        return out

    def graph_update(self, context_lens: tuple[int, ...]) -> list[dict[str, Any]]:
        raise AssertionError("no graph is made of these operations")
