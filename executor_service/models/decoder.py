# SPDX-License-Identifier: Apache-2.0
"""The decoder-only transformer that a config describes: from a step's ids to logits, all on the device.

Embedding is a method of the model; a model that needs more than a row of a table overrides it, and what runs a model
never looks at what lies between embed and logits. Does not know sequences, sampling or where the weights came from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from executor_service.models.forward_batch import ForwardBatch, KvCache
from executor_service.models.model_config import LayerConfig, ModelConfig
from executor_service.models.rope import Rope
from executor_service.models.weights import DecoderWeights, LayerWeights
from executor_service.scheduling.cache_group import CacheGroup
from kernels import Backend


@dataclass(frozen=True, eq=False)
class Shared:
    """What layers of one kind have in common in a step."""

    cos: Tensor  # [N, D]
    sin: Tensor  # [N, D]
    plan: Any  # the backend's own


class Decoder:
    def __init__(self, config: ModelConfig, weights: DecoderWeights, ops: Backend) -> None:
        self.config = config
        self.weights = weights
        self.ops = ops
        self.cache_groups = cache_groups(config)
        self.kinds = set(config.layers)
        self.ropes = {kind.rope: Rope(kind.rope, config.head_dim, weights.embedding.device) for kind in self.kinds}
        self.activation = {"silu": ops.silu_mul, "gelu_tanh": ops.gelu_tanh_mul}[config.activation]
        # As it is in the embedding's type.
        self.embedding_scale = torch.tensor(config.embedding_scale, dtype=weights.embedding.dtype).item()

    def forward(self, batch: ForwardBatch, cache: KvCache) -> Tensor:
        """What logits() takes, [R + Q, ...], of batch.logit_rows; keys and values of every token are written to the
        cache."""
        x = self.embed(batch.token_ids)  # [N, ...]
        return self.layers(x, batch, cache)[batch.logit_rows]

    def embed(self, token_ids: Tensor) -> Tensor:
        """token_ids int32 [N], on the device -> [N, ...]."""
        return self.ops.embed(self.weights.embedding, token_ids) * self.embedding_scale  # [N, C]

    def layers(self, x: Tensor, batch: ForwardBatch, cache: KvCache) -> Tensor:
        shared = self.prepare(x, batch, cache)
        for config, layer, kv in zip(self.config.layers, self.weights.layers, cache, strict=True):
            x = x + self.attention(x, layer, shared[config], kv)
            x = x + self.mlp(x, layer)
        return x

    def logits(self, x: Tensor) -> Tensor:
        """x [R, ...] -> [R, V] float32."""
        x = self.norm(x, self.weights.norm)
        logits = self.ops.linear(x, self.weights.head, None).float().contiguous()
        return logits if self.config.logit_cap is None else self.ops.soft_cap(logits, self.config.logit_cap)

    def prepare(self, x: Tensor, batch: ForwardBatch, cache: KvCache) -> dict[LayerConfig, Shared]:
        tables = {rope: make(batch.positions, x.dtype) for rope, make in self.ropes.items()}
        block_tokens = cache[0][0].shape[2]
        plans = {
            group.window: self.ops.attention_plan(
                batch.slots[i],
                batch.block_tables[i],
                batch.offsets,
                batch.context_lens,
                block_tokens,
                self.config.num_heads,
                self.config.num_kv_heads,
                group.window,
            )
            for i, group in enumerate(self.cache_groups)
        }
        return {kind: Shared(*tables[kind.rope], plans[kind.window]) for kind in self.kinds}

    def attention(self, x: Tensor, layer: LayerWeights, shared: Shared, kv: tuple[Tensor, Tensor]) -> Tensor:
        config = self.config
        qk, v = self.project(self.norm(x, layer.input_norm), layer)  # [N, H + K, D], [N, K, D]
        qk = self.ops.rope(qk, shared.cos, shared.sin)
        q, k = qk.split([config.num_heads, config.num_kv_heads], 1)
        self.ops.store_kv(k, v, *kv, shared.plan)
        out = self.ops.attention(q, *kv, shared.plan, config.attention_scale, config.attention_cap)  # [N, H, D]
        out = self.ops.linear(out.flatten(1), layer.output, layer.output_bias)  # [N, C]
        return self.norm(out, layer.attention_output_norm)

    def project(self, x: Tensor, layer: LayerWeights) -> tuple[Tensor, Tensor]:
        """Queries and keys side by side, and values."""
        config = self.config
        qkv = self.ops.linear(x, layer.qkv, layer.qkv_bias).contiguous().unflatten(1, (-1, config.head_dim))
        qk, v = qkv.split([config.num_heads + config.num_kv_heads, config.num_kv_heads], 1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = qk.split([config.num_heads, config.num_kv_heads], 1)
            qk = torch.cat((self.norm(q, layer.q_norm), self.norm(k, layer.k_norm)), 1)
        return qk, v

    def mlp(self, x: Tensor, layer: LayerWeights) -> Tensor:
        x = self.norm(x, layer.mlp_norm)
        x = self.activation(self.ops.linear(x, layer.gate_up, layer.gate_up_bias))  # [N, F]
        x = self.ops.linear(x, layer.down, layer.down_bias)  # [N, C]
        return self.norm(x, layer.mlp_output_norm)

    def norm(self, x: Tensor, weight: Tensor | None) -> Tensor:
        """x as it is where the config has no such norm."""
        return x if weight is None else self.ops.rms_norm(x, weight, self.config.rms_norm_eps)

    @property
    def kv_bytes_per_token(self) -> int:
        """Of one layer."""
        return 2 * self.config.num_kv_heads * self.config.head_dim * self.weights.embedding.element_size()

    def new_cache(self, num_blocks: Sequence[int], block_tokens: int, device: torch.device) -> KvCache:
        """num_blocks: of each of the cache_groups."""
        blocks = {group.window: count for group, count in zip(self.cache_groups, num_blocks, strict=True)}
        dtype = self.weights.embedding.dtype

        # Not cleared: pages are taken from the system as they are written, and no operation reads an unwritten slot.
        def empty(window: int | None) -> Tensor:
            shape = (blocks[window], self.config.num_kv_heads, block_tokens, self.config.head_dim)
            return torch.empty(shape, dtype=dtype, device=device)

        return [(empty(layer.window), empty(layer.window)) for layer in self.config.layers]


def cache_groups(config: ModelConfig) -> tuple[CacheGroup, ...]:
    """One for each window, the one that sees farthest first."""
    windows = [layer.window for layer in config.layers]
    farthest_first = sorted(set(windows), key=lambda window: (window is not None, -(window or 0)))
    return tuple(CacheGroup(window, windows.count(window)) for window in farthest_first)
