# SPDX-License-Identifier: Apache-2.0
"""The table of operations of Atlas A2 and A3 (Ascend910B, Ascend910_93): float16, bfloat16, and weights of int8.

Does not know how the cache is laid out.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch_npu
from torch import Tensor
from torch.nn.functional import linear

from kernels.int8_weight import Int8Weight
from kernels.npu.common import Common, Paging
from kernels.npu.composed_attention import ComposedAttention
from kernels.npu.fused_attention import FusedAttention
from kernels.npu.limits import FUSED_TYPES, MAX_QUANT_DIM, check_fused_blocks, why_not_fused
from protos.errors import ConfigError

if TYPE_CHECKING:
    from kernels import Shape

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class PackedInt8:
    values: Tensor  # int8 [I, O]
    scale: Tensor  # float32 [O]


class AtlasA2(Common):
    def __init__(self, device: torch.device, shape: Shape) -> None:
        if shape.is_quantized and shape.dtype not in FUSED_TYPES:
            raise ConfigError(f"weights of int8 with {shape.dtype}: npu_dynamic_quant takes float16 and bfloat16")
        super().__init__(shape.num_heads, shape.num_kv_heads, paging_of(device, shape))

    def pack_weight(self, weight: Tensor | Int8Weight) -> Tensor | PackedInt8:
        if isinstance(weight, Tensor):
            return weight
        if max(weight.values.shape) > MAX_QUANT_DIM:
            raise ConfigError(f"int8 weight {tuple(weight.values.shape)}: products take at most {MAX_QUANT_DIM}")
        return PackedInt8(weight.values.t().contiguous(), weight.scale)

    def linear(self, x: Tensor, weight: Tensor | PackedInt8, bias: Tensor | None) -> Tensor:
        if isinstance(weight, Tensor):
            return linear(x, weight, bias)
        values, scale = torch_npu.npu_dynamic_quant(x)  # int8 [N, I], float32 [N]
        if bias is not None and bias.dtype is torch.float16:
            bias = bias.float()
        out: Tensor = torch_npu.npu_quant_matmul(
            values, weight.values, weight.scale, pertoken_scale=scale, bias=bias, output_dtype=x.dtype
        )
        return out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        out: Tensor = torch_npu.npu_swiglu(gate_up.contiguous())
        return out

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        # As a batch of one (BSND): packed sequences have no more than 1000 tokens there.
        out: Tensor = torch_npu.npu_rotary_mul(x.unsqueeze(0), cos.unsqueeze(0), sin.unsqueeze(0), rotary_mode="half")
        return out.squeeze(0)


def paging_of(device: torch.device, shape: Shape) -> Paging:
    if reason := why_not_fused(shape):
        log.info("attention of composed operations: %s", reason)
        return ComposedAttention()
    check_fused_blocks(shape)
    log.info("attention by npu_fused_infer_attention_score")
    return FusedAttention(device, has_windows=bool(shape.windows))
