# SPDX-License-Identifier: Apache-2.0
"""The decoder-only transformer that a config describes: from a step's ids to logits, all on the device.

Embedding is a method of the model; a model that needs more than a row of a table overrides it, and what runs a model
never looks at what lies between embed and logits. Does not know sequences, sampling or where the weights came from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from executor_service.forward_batch import ForwardBatch, KvCache
from executor_service.model_config import ModelConfig
from executor_service.rope import Rope
from executor_service.weights import DecoderWeights, LayerWeights
from kernels import Backend


@dataclass(frozen=True, eq=False)
class Shared:
    """What the layers of one step have in common."""

    cos: Tensor  # [N, D]
    sin: Tensor  # [N, D]
    plan: Any  # the backend's own


class Decoder:
    def __init__(self, config: ModelConfig, weights: DecoderWeights, ops: Backend) -> None:
        self.config = config
        self.weights = weights
        self.ops = ops
        self.rope = Rope(config.rope, config.head_dim, weights.embedding.device)
        self.scale = config.head_dim**-0.5

    def forward(self, batch: ForwardBatch, cache: KvCache) -> Tensor:
        """float32 logits [R, V] of batch.logit_rows; keys and values of every token are written to the cache."""
        x = self.embed(batch.token_ids)  # [N, ...]
        x = self.layers(x, batch, cache)
        return self.logits(x[batch.logit_rows])

    def embed(self, token_ids: Tensor) -> Tensor:
        """token_ids int32 [N], on the device -> [N, ...]."""
        return self.ops.embed(self.weights.embedding, token_ids)  # [N, C]

    def layers(self, x: Tensor, batch: ForwardBatch, cache: KvCache) -> Tensor:
        shared = self.prepare(x, batch, cache)
        for layer, kv in zip(self.weights.layers, cache, strict=True):
            x = x + self.attention(x, layer, shared, kv)
            x = x + self.mlp(x, layer)
        return x

    def logits(self, x: Tensor) -> Tensor:
        """x [R, ...] -> [R, V] float32."""
        x = self.ops.rms_norm(x, self.weights.norm, self.config.rms_norm_eps)
        return self.ops.linear(x, self.weights.head, None).float().contiguous()

    def prepare(self, x: Tensor, batch: ForwardBatch, cache: KvCache) -> Shared:
        block_tokens, config = cache[0][0].shape[2], self.config
        tables = batch.block_tables[0]  # [B, M]
        heads = (config.num_heads, config.num_kv_heads)
        plan = self.ops.attention_plan(batch.slots, tables, batch.offsets, batch.context_lens, block_tokens, *heads)
        return Shared(*self.rope(batch.positions, x.dtype), plan)

    def attention(self, x: Tensor, layer: LayerWeights, shared: Shared, kv: tuple[Tensor, Tensor]) -> Tensor:
        x = self.ops.rms_norm(x, layer.input_norm, self.config.rms_norm_eps)
        qk, v = self.project(x, layer)  # [N, H + K, D], [N, K, D]
        qk = self.ops.rope(qk, shared.cos, shared.sin)
        q, k = qk.split([self.config.num_heads, self.config.num_kv_heads], 1)
        self.ops.store_kv(k, v, *kv, shared.plan)
        out = self.ops.attention(q, *kv, shared.plan, self.scale)  # [N, H, D]
        return self.ops.linear(out.flatten(1), layer.output, layer.output_bias)  # [N, C]

    def project(self, x: Tensor, layer: LayerWeights) -> tuple[Tensor, Tensor]:
        """Queries and keys side by side, and values."""
        config = self.config
        qkv = self.ops.linear(x, layer.qkv, layer.qkv_bias).contiguous().unflatten(1, (-1, config.head_dim))
        qk, v = qkv.split([config.num_heads + config.num_kv_heads, config.num_kv_heads], 1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = qk.split([config.num_heads, config.num_kv_heads], 1)
            q = self.ops.rms_norm(q, layer.q_norm, config.rms_norm_eps)
            k = self.ops.rms_norm(k, layer.k_norm, config.rms_norm_eps)
            qk = torch.cat((q, k), 1)
        return qk, v

    def mlp(self, x: Tensor, layer: LayerWeights) -> Tensor:
        x = self.ops.rms_norm(x, layer.mlp_norm, self.config.rms_norm_eps)
        x = self.ops.silu_mul(self.ops.linear(x, layer.gate_up, layer.gate_up_bias))  # [N, F]
        return self.ops.linear(x, layer.down, layer.down_bias)  # [N, C]

    @property
    def kv_bytes_per_token(self) -> int:
        config = self.config
        values = 2 * config.num_layers * config.num_kv_heads * config.head_dim
        return values * self.weights.embedding.element_size()

    def new_cache(self, num_blocks: int, block_tokens: int, device: torch.device) -> KvCache:
        shape = (num_blocks, self.config.num_kv_heads, block_tokens, self.config.head_dim)
        dtype = self.weights.embedding.dtype

        # Not cleared: pages are taken from the system as they are written, and no operation reads an unwritten slot.
        def empty() -> Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        return [(empty(), empty()) for _ in range(self.config.num_layers)]
