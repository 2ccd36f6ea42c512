# SPDX-License-Identifier: Apache-2.0
"""Operations that treat each token by itself.

They use only torch functions whose bits do not depend on an element's place: exp and tanh are such, silu, gelu and
sigmoid are not (the end of an array, and of each thread's part of it, takes another path).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def embed(table: Tensor, token_ids: Tensor, scale: float) -> Tensor:
    x = table.index_select(0, token_ids)  # [N, C]
    return x if scale == 1 else x.mul_(scale)


def embed_rms_norm(table: Tensor, token_ids: Tensor, scale: float, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    x = embed(table, token_ids, scale)
    return x, rms_norm(x, weight, eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float().contiguous()  # a mean over other strides would be summed in another order
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)  # [..., 1]
    return (weight * (wide * scale).to(weight.dtype)).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    x = residual + x
    return x, rms_norm(x, weight, eps)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)  # [N, H, D / 2] each
    turned = torch.cat((-second, first), -1)
    return (x * cos.unsqueeze(1)).add_(turned.mul_(sin.unsqueeze(1)))  # [N, H, D]


def silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, -1)  # [N, F] each
    wide = gate.float()
    return (wide / torch.exp(-wide).add_(1)).to(up.dtype).mul_(up)


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """Hendrycks and Gimpel, Gaussian Error Linear Units: x / 2 * (1 + tanh(u)) = x / (1 + exp(-2 u)), where
    u = sqrt(2 / pi) * (x + 0.044715 x^3)."""
    gate, up = gate_up.chunk(2, -1)  # [N, F] each
    wide = gate.float()
    twice_u = (wide * wide).mul_(0.044715).add_(1).mul_(wide).mul_(2 * math.sqrt(2 / math.pi))
    return (wide / torch.exp(twice_u.neg_()).add_(1)).to(up.dtype).mul_(up)


def soft_cap(x: Tensor, cap: float) -> Tensor:
    return (x / cap).tanh_().mul_(cap)
