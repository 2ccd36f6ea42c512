# SPDX-License-Identifier: Apache-2.0
"""The Backend of NVIDIA GPUs: which kernel computes which operation, for one device and the heads of one model.

Reads lengths on the device, so that a captured step is replayed as it is. Does not know sequences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from kernels.int8_weight import Int8Weight
from kernels.paged_rows import PagedRows
from kernels.reference.rowwise import soft_cap
from kernels.reference.scoring import score
from kernels.sampling_rows import SamplingRows
from kernels.triton import gated, norm, rope, sampler
from kernels.triton.attention import attention, layout_for
from kernels.triton.attention_plan import AttentionPlan, attention_plan
from kernels.triton.cores import cores_of
from kernels.triton.linear import linear

if TYPE_CHECKING:
    from kernels import Shape


class TritonBackend:
    can_graph = True

    def __init__(self, device: torch.device, shape: Shape) -> None:
        self.cores = cores_of(device)
        self.layout = layout_for(shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.dtype, self.cores)

    def pack_weight(self, weight: Tensor | Int8Weight) -> Tensor | Int8Weight:
        return weight

    def new_cache(
        self,
        num_blocks: int,
        block_tokens: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> tuple[Tensor, Tensor]:
        """Each [blocks, S, K, D]. Not cleared: no operation reads an unwritten slot."""
        shape = (num_blocks, block_tokens, num_kv_heads, head_dim)
        return torch.empty(shape, dtype=dtype, device=device), torch.empty(shape, dtype=dtype, device=device)

    def embed(self, table: Tensor, token_ids: Tensor, scale: float) -> Tensor:
        return norm.embed(table, token_ids, scale, self.cores)

    def embed_rms_norm(
        self, table: Tensor, token_ids: Tensor, scale: float, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        return norm.embed_rms_norm(table, token_ids, scale, weight, eps, self.cores)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return norm.rms_norm(x, weight, eps, self.cores)

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return norm.add_rms_norm(x, residual, weight, eps, self.cores)

    def linear(self, x: Tensor, weight: Tensor | Int8Weight, bias: Tensor | None) -> Tensor:
        return linear(x, weight, bias)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return gated.gated(gate_up, False, self.cores)

    def gelu_tanh_mul(self, gate_up: Tensor) -> Tensor:
        return gated.gated(gate_up, True, self.cores)

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        return soft_cap(x, cap)

    def attention_plan(
        self, rows: PagedRows, block_tokens: int, num_heads: int, num_kv_heads: int, window: int | None
    ) -> AttentionPlan:
        return attention_plan(rows, block_tokens, window, self.layout.tile_queries)

    def rope_and_store(
        self,
        qkv: Tensor,
        norms: tuple[Tensor, Tensor] | None,
        eps: float,
        cos: Tensor,
        sin: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        plan: AttentionPlan,
    ) -> Tensor:
        return rope.rope_and_store(qkv, norms, eps, cos, sin, k_cache, v_cache, plan.rows.slots, self.cores)

    def attention(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, plan: AttentionPlan, scale: float, cap: float | None
    ) -> Tensor:
        return attention(q, k_cache, v_cache, plan, scale, cap, self.layout, self.cores)

    def graph_update(self, context_lens: tuple[int, ...]) -> list[dict[str, Any]]:
        return []

    def choose(self, logits: Tensor, rows: SamplingRows) -> Tensor:
        return sampler.choose(logits, rows, self.cores)

    def score(self, logits: Tensor, token_ids: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
        return score(logits, token_ids, num_top)
