# SPDX-License-Identifier: Apache-2.0
"""Operations that treat each token by itself.

They use only torch functions whose bits do not depend on an element's place: exp is one, silu and sigmoid are not
(the end of an array, and of each thread's part of it, takes another path).
"""

from __future__ import annotations

import torch
from torch import Tensor


def embed(table: Tensor, token_ids: Tensor) -> Tensor:
    return table.index_select(0, token_ids)  # [N, C]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float().contiguous()  # a mean over other strides would be summed in another order
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)  # [..., 1]
    return weight * (wide * scale).to(x.dtype)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)  # [N, H, D / 2] each
    turned = torch.cat((-second, first), -1)
    return (x * cos.unsqueeze(1)).add_(turned.mul_(sin.unsqueeze(1)))  # [N, H, D]


def silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, -1)  # [N, F] each
    wide = gate.float()
    return (wide / torch.exp(-wide).add_(1)).to(up.dtype).mul_(up)
