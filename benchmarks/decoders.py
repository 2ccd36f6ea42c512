# SPDX-License-Identifier: Apache-2.0
"""Decoders in the shapes of Qwen3 with random weights, steps for them, and what a step costs at least.

Weights are made on the device. Does not know how a step is run or timed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import kernels
from executor_service.models.decoder import Decoder
from executor_service.models.model_config import ModelConfig, parse_model_config
from executor_service.models.weight_names import NORM_SUFFIX
from executor_service.models.weights import DecoderWeights, Places
from executor_service.scheduling.sequence import RowKey, Sampling
from executor_service.scheduling.step import NewBlocks, Step, StepRow

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "hidden_act": "silu",
}
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
SHAPES: dict[str, dict[str, Any]] = {
    "0.6B": dict(zip(SIZES, (1024, 3072, 28, 16, 8), strict=True), tie_word_embeddings=True),
    "4B": dict(zip(SIZES, (2560, 9728, 36, 32, 8), strict=True), tie_word_embeddings=True),
    "14B": dict(zip(SIZES, (5120, 17408, 40, 40, 8), strict=True), tie_word_embeddings=False),
    # To try the program itself, on any device.
    "tiny": dict(zip(SIZES, (64, 96, 2, 4, 2), strict=True), head_dim=16, vocab_size=320),
}
# As many callers ask for it.
SAMPLING = Sampling(temperature=0.7, top_p=0.95)


def random_weights(config: ModelConfig, dtype: torch.dtype, device: torch.device) -> DecoderWeights:
    """Of a size at which logits stay finite and attention looks at more than one token."""
    places = Places(dtype, device, norm_dtype=dtype)
    weights = places.decoder(config, has_head=not config.tie_word_embeddings)
    for name, place in places.by_name.items():
        if name.endswith(NORM_SUFFIX):
            place.fill_(1)
        else:
            place.normal_(std=place.shape[-1] ** -0.5)
    return weights


def random_model(shape: str, block_tokens: int, dtype: torch.dtype, device: torch.device) -> Decoder:
    config = parse_model_config(QWEN3 | SHAPES[shape], {})
    heads = config.num_heads, config.num_kv_heads, config.head_dim
    ops = kernels.load("auto", device, kernels.Shape(*heads, block_tokens, dtype))
    return Decoder(config, random_weights(config, dtype, device), ops, config.max_position_embeddings)


def num_weights(config: ModelConfig) -> tuple[int, int]:
    """Of the layers' products, and of the head: what each token, and each one that samples, is multiplied by."""
    heads = config.num_heads + 2 * config.num_kv_heads, config.num_heads
    each = sum(heads) * config.head_dim * config.hidden_size + 3 * config.hidden_size * config.intermediate_size
    return len(config.layers) * each, config.vocabulary_size * config.hidden_size


def num_operations(config: ModelConfig, step: Step) -> int:
    """Multiplications and additions of a step's matrix products, of those in attention what a causal order leaves."""
    layers, head = num_weights(config)
    num_seen = sum(sum(range(row.first_position + 1, row.context_len + 1)) for row in step.rows)
    attention = 2 * len(config.layers) * config.num_heads * config.head_dim * num_seen
    return 2 * (layers * step.num_tokens + head * len(step.rows) + attention)


def num_bytes(model: Decoder, step: Step) -> int:
    """What a step has to read: each weight once, and the keys and values of every row."""
    of_context = sum(row.context_len for row in step.rows) * model.kv_bytes_per_token * len(model.config.layers)
    return sum(num_weights(model.config)) * model.weights.embedding.element_size() + of_context


class Rows:
    """number rows that grow together; each has blocks of its own, for max_tokens tokens."""

    def __init__(self, number: int, max_tokens: int, block_tokens: int) -> None:
        self.number, self.block_tokens = number, block_tokens
        self.blocks_per_row = -(-max_tokens // block_tokens)

    @property
    def num_blocks(self) -> int:
        return self.number * self.blocks_per_row

    def step(self, first: int, last: int, named: int | None = None) -> Step:
        """Tokens [first, last) of each row, with the blocks that begin from position named on: from first, if None. One
        token is read on the device, as the one that the step before sampled."""
        token_ids = None if last - first == 1 else np.zeros(last - first, np.int32)
        blocks = range(-(-(first if named is None else named) // self.block_tokens), -(-last // self.block_tokens))
        return Step(0, [self._row(i, first, last - first, token_ids, blocks) for i in range(self.number)])

    def _row(self, i: int, first: int, num_tokens: int, token_ids: Any, blocks: range) -> StepRow:
        return StepRow(
            RowKey(0, i),
            first_position=first,
            num_tokens=num_tokens,
            token_ids=token_ids,
            sample_index=i,
            slot=i,
            new_blocks=(NewBlocks(blocks.start, [i * self.blocks_per_row + block for block in blocks]),),
            sampling=SAMPLING,
            output_position=first,
        )
