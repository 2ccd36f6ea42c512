# SPDX-License-Identifier: Apache-2.0
"""What the tables of all chips share: operations on each token by itself, and the order of those around attention.

How a chip multiplies matrices and turns heads is its table's, how the cache is laid out its paging's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch_npu
from torch import Tensor
from torch.nn.functional import embedding, gelu

from kernels.npu.limits import ROTARY_HEAD_DIMS
from kernels.npu.sampling import choose
from kernels.paged_rows import PagedRows
from kernels.reference.scoring import score
from kernels.sampling_rows import SamplingRows

if TYPE_CHECKING:
    from kernels.int8_weight import Int8Weight


class Paging(Protocol):
    """A layout of the cache, how it is written and how attention reads it."""

    can_graph: bool

    def new_cache(
        self,
        num_blocks: int,
        block_tokens: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> tuple[Tensor, Tensor]: ...

    def plan(
        self, rows: PagedRows, block_tokens: int, num_heads: int, num_kv_heads: int, window: int | None
    ) -> Any: ...

    def store(self, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, plan: Any) -> None:
        """k, v [N, K, D], contiguous."""

    def attention(
        self, q: Tensor, k_cache: Tensor, v_cache: Tensor, plan: Any, scale: float, cap: float | None
    ) -> Tensor: ...

    def graph_update(self, context_lens: tuple[int, ...]) -> list[dict[str, Any]]: ...


class Common(ABC):
    def __init__(self, num_heads: int, num_kv_heads: int, paging: Paging) -> None:
        self.num_heads, self.num_kv_heads, self.paging = num_heads, num_kv_heads, paging
        self.can_graph = paging.can_graph
        self.new_cache = paging.new_cache
        self.attention_plan = paging.plan
        self.attention = paging.attention
        self.graph_update = paging.graph_update

    @abstractmethod
    def pack_weight(self, weight: Tensor | Int8Weight) -> Any: ...

    @abstractmethod
    def linear(self, x: Tensor, weight: Any, bias: Tensor | None) -> Tensor: ...

    @abstractmethod
    def silu_mul(self, gate_up: Tensor) -> Tensor: ...

    @abstractmethod
    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [N, H, D], cos and sin [N, 1, D], of a head size that npu_apply_rotary_pos_emb does not take."""

    # ---- of each token by itself

    def embed(self, table: Tensor, token_ids: Tensor, scale: float) -> Tensor:
        x = embedding(token_ids, table)  # [N, C]
        return x if scale == 1 else x.mul_(scale)

    def embed_rms_norm(
        self, table: Tensor, token_ids: Tensor, scale: float, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        x = self.embed(table, token_ids, scale)
        return x, self.rms_norm(x, weight, eps)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        normed: Tensor = torch_npu.npu_rms_norm(x, weight, epsilon=eps)[0]
        return normed

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        if weight.dtype is x.dtype:
            normed, _, x = torch_npu.npu_add_rms_norm(x, residual, weight, epsilon=eps)
            return x, normed
        x = x + residual
        return x, self.rms_norm(x, weight, eps)

    def gelu_tanh_mul(self, gate_up: Tensor) -> Tensor:
        """npu_gelu_mul takes no more than 1024 values a token."""
        gate, up = gate_up.chunk(2, -1)  # [N, F] each
        return gelu(gate, approximate="tanh").mul_(up)

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        return (x / cap).tanh_().mul_(cap)

    # ---- attention

    def rope_and_store(
        self,
        qkv: Tensor,
        norms: tuple[Tensor, Tensor] | None,
        eps: float,
        cos: Tensor,
        sin: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        plan: Any,
    ) -> Tensor:
        heads = qkv.unflatten(1, (self.num_heads + 2 * self.num_kv_heads, -1))  # [N, H + 2 K, D]
        q, k, v = heads.split((self.num_heads, self.num_kv_heads, self.num_kv_heads), 1)
        if norms is not None:
            q, k = self.rms_norm(q, norms[0], eps), self.rms_norm(k, norms[1], eps)
        q, k = self.rope(q, k, cos.unsqueeze(1), sin.unsqueeze(1))
        self.paging.store(k, v.contiguous(), k_cache, v_cache, plan)
        return q

    def rope(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        """q [N, H, D], k [N, K, D], cos and sin [N, 1, D]; contiguous results."""
        if q.shape[2] not in ROTARY_HEAD_DIMS:
            return self.turn(q, cos, sin), self.turn(k, cos, sin)
        q, k = q.contiguous(), k.contiguous()
        # In place, though its schema does not say so.
        torch_npu.npu_apply_rotary_pos_emb(q, k, cos, sin, layout="TND", rotary_mode="half")
        return q, k

    # ---- sampling

    def choose(self, logits: Tensor, rows: SamplingRows) -> Tensor:
        return choose(logits, rows)

    def score(self, logits: Tensor, token_ids: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
        return score(logits, token_ids, num_top)
