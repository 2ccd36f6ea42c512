# SPDX-License-Identifier: Apache-2.0
"""The table of operations of Atlas inference cards (Ascend310P): float16 alone, matrices in FRACTAL_NZ.

Does not know how the cache is laid out.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
import torch_npu
from torch import Tensor
from torch.nn.functional import linear

from kernels.int8_weight import Int8Weight
from kernels.npu.common import Common, Paging
from kernels.npu.composed_attention import ComposedAttention
from kernels.npu.limits import check_310p, check_nz_blocks, why_not_nz
from kernels.npu.nz_attention import FRACTAL_NZ, NzAttention
from kernels.reference.rowwise import rope, silu_mul

if TYPE_CHECKING:
    from kernels import Shape

log = logging.getLogger(__name__)


class Atlas310P(Common):
    def __init__(self, device: torch.device, shape: Shape) -> None:
        check_310p(shape)
        # Else npu_format_cast leaves the layout as it is.
        torch_npu.npu.config.allow_internal_format = True
        super().__init__(shape.num_heads, shape.num_kv_heads, paging_of(device, shape))

    def pack_weight(self, weight: Tensor | Int8Weight) -> Tensor:
        assert isinstance(weight, Tensor), "refused at the start"
        if min(weight.shape) == 1:
            return weight
        packed: Tensor = torch_npu.npu_format_cast(weight, FRACTAL_NZ)
        return packed

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return linear(x, weight, bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """npu_rms_norm of 310P takes a weight of x's type only."""
        return super().rms_norm(x.to(weight.dtype), weight, eps).to(x.dtype)

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        return silu_mul(gate_up)

    def turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rope(x, cos.squeeze(1), sin.squeeze(1))


def paging_of(device: torch.device, shape: Shape) -> Paging:
    if reason := why_not_nz(shape):
        log.info("attention of composed operations: %s", reason)
        return ComposedAttention()
    check_nz_blocks(shape)
    log.info("attention by _npu_paged_attention")
    return NzAttention(device)
