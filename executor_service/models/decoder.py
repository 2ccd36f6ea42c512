# SPDX-License-Identifier: Apache-2.0
"""The decoder-only transformer that a config describes: from a step's ids to logits, all on the device.

Embedding is a method of the model; a model that needs more than a row of a table overrides it, and what runs a model
never looks at what lies between embed and logits. Does not know sequences, sampling or where the weights came from.
"""

from __future__ import annotations

import dataclasses
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

# The fields of LayerWeights that linear() takes.
MATRICES = ("qkv", "output", "gate_up", "down")


@dataclass(frozen=True, eq=False)
class Shared:
    """What layers of one kind have in common in a step."""

    cos: Tensor  # [N, D]
    sin: Tensor  # [N, D]
    plan: Any  # the backend's own


class Decoder:
    def __init__(self, config: ModelConfig, weights: DecoderWeights, ops: Backend, num_positions: int = 0) -> None:
        """weights are used up. num_positions: of the table of rotary positions, 0 for none."""
        self.config = config
        self.weights = packed(weights, ops)
        self.ops = ops
        self.cache_groups = cache_groups(config)
        self.kinds = set(config.layers)
        table = weights.embedding
        self.ropes = {
            kind.rope: Rope(kind.rope, config.head_dim, table.dtype, table.device, num_positions) for kind in self.kinds
        }
        self.activation = {"silu": ops.silu_mul, "gelu_tanh": ops.gelu_tanh_mul}[config.activation]
        # As it is in the embedding's type.
        self.embedding_scale = torch.tensor(config.embedding_scale, dtype=table.dtype).item()

    def forward(self, batch: ForwardBatch, cache: KvCache) -> Tensor:
        """What logits() takes, [R + Q, ...], of batch.logit_rows; keys and values of every token are written to the
        cache."""
        return self.layers(*self.embed(batch.token_ids), batch, cache)

    def embed(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """token_ids int32 [N] -> [N, ...]: what the layers add to, and its norm, which the first layer takes."""
        weights = self.weights
        norm = weights.layers[0].input_norm
        return self.ops.embed_rms_norm(
            weights.embedding, token_ids, self.embedding_scale, norm, self.config.rms_norm_eps
        )

    def layers(self, x: Tensor, normed: Tensor, batch: ForwardBatch, cache: KvCache) -> Tensor:
        """x, normed [N, C] -> [R + Q, C]."""
        shared = self.prepare(batch)
        layers = self.weights.layers
        for i, (config, layer) in enumerate(zip(self.config.layers, layers, strict=True)):
            out = self.attention(normed, layer, shared[config], cache[i])
            x, normed = self.ops.add_rms_norm(out, x, layer.mlp_norm, self.config.rms_norm_eps)
            out = self.mlp(normed, layer)
            if i + 1 < len(layers):
                x, normed = self.ops.add_rms_norm(out, x, layers[i + 1].input_norm, self.config.rms_norm_eps)
        return x.index_select(0, batch.logit_rows) + out.index_select(0, batch.logit_rows)

    def logits(self, x: Tensor) -> Tensor:
        """x [R, ...] -> [R, V] float32."""
        x = self.norm(x, self.weights.norm)
        logits = self.ops.linear(x, self.weights.head, None).float().contiguous()
        return logits if self.config.logit_cap is None else self.ops.soft_cap(logits, self.config.logit_cap)

    def prepare(self, batch: ForwardBatch) -> dict[LayerConfig, Shared]:
        tables = {config: rope(batch.positions) for config, rope in self.ropes.items()}
        heads = self.config.num_heads, self.config.num_kv_heads
        plans = {
            group.window: self.ops.attention_plan(rows, batch.block_tokens, *heads, group.window)
            for group, rows in zip(self.cache_groups, batch.groups, strict=True)
        }
        return {kind: Shared(*tables[kind.rope], plans[kind.window]) for kind in self.kinds}

    def attention(self, normed: Tensor, layer: LayerWeights, shared: Shared, kv: tuple[Tensor, Tensor]) -> Tensor:
        ops, config, plan = self.ops, self.config, shared.plan
        qkv = ops.linear(normed, layer.qkv, layer.qkv_bias)  # [N, (H + 2 K) D]
        norms = None if layer.q_norm is None or layer.k_norm is None else (layer.q_norm, layer.k_norm)
        q = ops.rope_and_store(qkv, norms, config.rms_norm_eps, shared.cos, shared.sin, *kv, plan)  # [N, H, D]
        out = ops.attention(q, *kv, plan, config.attention_scale, config.attention_cap)  # [N, H, D]
        out = ops.linear(out.flatten(1), layer.output, layer.output_bias)  # [N, C]
        return self.norm(out, layer.attention_output_norm)

    def mlp(self, normed: Tensor, layer: LayerWeights) -> Tensor:
        x = self.activation(self.ops.linear(normed, layer.gate_up, layer.gate_up_bias))  # [N, F]
        x = self.ops.linear(x, layer.down, layer.down_bias)  # [N, C]
        return self.norm(x, layer.mlp_output_norm)

    def norm(self, x: Tensor, weight: Tensor | None) -> Tensor:
        """x as it is where the config has no such norm."""
        return x if weight is None else self.ops.rms_norm(x, weight, self.config.rms_norm_eps)

    @property
    def vocabulary_size(self) -> int:
        return self.config.vocabulary_size

    @property
    def kv_bytes_per_token(self) -> int:
        """Of one layer."""
        return 2 * self.config.num_kv_heads * self.config.head_dim * self.weights.embedding.element_size()

    def new_cache(self, num_blocks: Sequence[int], block_tokens: int, device: torch.device) -> KvCache:
        """num_blocks: of each of the cache_groups."""
        blocks = {group.window: count for group, count in zip(self.cache_groups, num_blocks, strict=True)}
        sizes = self.config.num_kv_heads, self.config.head_dim, self.weights.embedding.dtype, device
        return [self.ops.new_cache(blocks[layer.window], block_tokens, *sizes) for layer in self.config.layers]


def packed(weights: DecoderWeights, ops: Backend) -> DecoderWeights:
    """Matrices in the backend's form. In the same list, layer by layer: the device does not hold all of them twice. A
    head that is the embedding stays one tensor with it."""
    for i, layer in enumerate(weights.layers):
        matrices = {name: ops.pack_weight(getattr(layer, name)) for name in MATRICES}
        weights.layers[i] = dataclasses.replace(layer, **matrices)
    is_tied = weights.head is weights.embedding
    return weights if is_tied else dataclasses.replace(weights, head=ops.pack_weight(weights.head))


def cache_groups(config: ModelConfig) -> tuple[CacheGroup, ...]:
    """One for each window, the one that sees farthest first."""
    windows = [layer.window for layer in config.layers]
    farthest_first = sorted(set(windows), key=lambda window: (window is not None, -(window or 0)))
    return tuple(CacheGroup(window, windows.count(window)) for window in farthest_first)
