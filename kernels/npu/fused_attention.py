# SPDX-License-Identifier: Apache-2.0
"""Attention by npu_fused_infer_attention_score over a cache [blocks, S, K, D], for Atlas A2 and A3.

Lengths are lists of the host, which a captured step gets anew for each replay; blocks are read by tables on the device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch_npu
from torch import Tensor

from kernels.npu.window import hidden_of_decode, seen_blocks
from kernels.paged_rows import PagedRows

# The size of the one mask that the operation takes for a causal order; it moves it to where it is needed.
MASK_SIZE = 2048
CAUSAL, BAND, AS_GIVEN = 3, 4, 0  # sparse_mode
UNLIMITED = 2147483647


@dataclass(frozen=True, eq=False)
class FusedPlan:
    slots: Tensor  # int32 [N]
    block_tables: Tensor  # int32 [B, M]
    context_lens: list[int]
    block_tokens: int
    num_kv_heads: int
    query_ends: list[int] | None  # None for one query a row, not packed
    mask: Tensor  # int8 [MASK_SIZE, MASK_SIZE]; bool [B, M * S] for AS_GIVEN
    sparse_mode: int = CAUSAL
    band: tuple[int, int] = (UNLIMITED, UNLIMITED)  # tokens before and after a query's own


class FusedAttention:
    def __init__(self, device: torch.device, has_windows: bool) -> None:
        # Layers with a window and those without would need lengths of their own for each replay.
        self.can_graph = not has_windows
        self.mask = torch.ones(MASK_SIZE, MASK_SIZE, dtype=torch.int8).triu_(1).to(device)

    def new_cache(
        self,
        num_blocks: int,
        block_tokens: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> tuple[Tensor, Tensor]:
        """Cleared: a masked token weighs 0, which is not enough where it is not finite."""
        shape = (num_blocks, block_tokens, num_kv_heads, head_dim)
        return torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype, device=device)

    def plan(
        self, rows: PagedRows, block_tokens: int, num_heads: int, num_kv_heads: int, window: int | None
    ) -> FusedPlan:
        seen = seen_blocks(rows, block_tokens, window)
        shared = (rows.slots, seen.block_tables, seen.context_lens, block_tokens, num_kv_heads)
        ends = list(rows.offsets[1:])
        if window is None:
            return FusedPlan(*shared, ends, self.mask)
        if rows.is_decode:
            # With one query a row the operation does not look at a band, but it does at a mask of the rows' own.
            return FusedPlan(*shared, None, hidden_of_decode(seen, block_tokens, window), AS_GIVEN)
        return FusedPlan(*shared, ends, self.mask, BAND, (window - 1, 0))

    def store(self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, plan: FusedPlan) -> None:
        torch_npu.npu_scatter_pa_kv_cache(k, v, k_cache, v_cache, plan.slots, cache_mode="Norm")

    def attention(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, plan: FusedPlan, scale: float, cap: float | None
    ) -> Tensor:
        assert cap is None, "takes the composed path"
        is_packed = plan.query_ends is not None
        out: Tensor = torch_npu.npu_fused_infer_attention_score(
            q if is_packed else q.unsqueeze(1),
            k_cache.flatten(2),  # [blocks, S, K D]
            v_cache.flatten(2),
            input_layout="TND" if is_packed else "BSND",
            actual_seq_lengths=plan.query_ends,
            actual_seq_lengths_kv=plan.context_lens,
            block_table=plan.block_tables,
            block_size=plan.block_tokens,
            num_heads=q.shape[1],
            num_key_value_heads=plan.num_kv_heads,
            scale=scale,
            atten_mask=plan.mask,
            sparse_mode=plan.sparse_mode,
            pre_tokens=plan.band[0],
            next_tokens=plan.band[1],
        )[0]
        return out if is_packed else out.squeeze(1)

    def graph_update(self, context_lens: tuple[int, ...]) -> list[dict[str, Any]]:
        return [{"actual_seq_lengths_kv": list(context_lens)}]
