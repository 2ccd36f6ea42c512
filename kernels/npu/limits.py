# SPDX-License-Identifier: Apache-2.0
"""What the documentation of the fused operations takes: a shape beyond it takes the composed path, or is refused.

Numbers from the documentation of torch_npu (Ascend op-plugin, custom_APIs). Does not know tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from protos.errors import ConfigError

if TYPE_CHECKING:
    from kernels import Shape

# npu_fused_infer_attention_score with sequences packed (TND), without a rope of its own.
FUSED_TYPES = (torch.float16, torch.bfloat16)
FUSED_HEAD_DIMS = (128, 192)
MAX_HEADS = 256
MAX_HEADS_PER_KEY = 64
MAX_KEY_VALUES = 65535
BLOCK_ALIGNMENT = 16
MAX_BLOCK_TOKENS = 1024
# Decode steps of layers with a window are not packed (BSND).
MAX_WINDOWED_BLOCK_TOKENS = 512
# npu_apply_rotary_pos_emb
ROTARY_HEAD_DIMS = (64, 128)
# npu_quant_matmul
MAX_QUANT_DIM = 65535
# Attention of 310P: tokens of a block times head size.
MAX_310P_BLOCK_VALUES = 128 * 128


def why_not_fused(shape: Shape) -> str | None:
    """What keeps the shape from npu_fused_infer_attention_score, if anything does."""
    heads_per_key = shape.num_heads // shape.num_kv_heads
    if shape.dtype not in FUSED_TYPES:
        return f"{shape.dtype} (float16, bfloat16)"
    if shape.has_cap:
        return "attention scores are bounded"
    if shape.head_dim not in FUSED_HEAD_DIMS:
        return f"head size {shape.head_dim} {FUSED_HEAD_DIMS}"
    if heads_per_key > MAX_HEADS_PER_KEY:
        return f"{heads_per_key} query heads a key head (at most {MAX_HEADS_PER_KEY})"
    if shape.num_heads > MAX_HEADS:
        return f"{shape.num_heads} query heads (at most {MAX_HEADS})"
    if shape.num_kv_heads * shape.head_dim > MAX_KEY_VALUES:
        return f"{shape.num_kv_heads * shape.head_dim} values a key (at most {MAX_KEY_VALUES})"
    return None


def check_fused_blocks(shape: Shape) -> None:
    limit = MAX_WINDOWED_BLOCK_TOKENS if shape.windows else MAX_BLOCK_TOKENS
    check_blocks(shape, limit)


def why_not_nz(shape: Shape) -> str | None:
    """What keeps the shape from 310P's attention."""
    if shape.has_cap:
        return "attention scores are bounded"
    if shape.windows:
        return f"windows of {shape.windows} tokens"
    if shape.head_dim % BLOCK_ALIGNMENT:
        return f"head size {shape.head_dim} (multiples of {BLOCK_ALIGNMENT})"
    return None


def check_nz_blocks(shape: Shape) -> None:
    check_blocks(shape, MAX_310P_BLOCK_VALUES // shape.head_dim)


def check_blocks(shape: Shape, limit: int) -> None:
    if shape.block_tokens % BLOCK_ALIGNMENT or shape.block_tokens > limit:
        raise ConfigError(
            f"blocks of {shape.block_tokens} tokens: attention of this model on this chip takes multiples of "
            f"{BLOCK_ALIGNMENT} up to {limit}"
        )


def check_310p(shape: Shape) -> None:
    if shape.dtype is not torch.float16:
        raise ConfigError(f"{shape.dtype}: Ascend310P takes float16 only")
    if shape.is_quantized:
        raise ConfigError("weights of int8 with activations quantized by token: Ascend310P has no product for them")
