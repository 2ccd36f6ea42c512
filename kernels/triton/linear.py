# SPDX-License-Identifier: Apache-2.0
"""Products with weights: the vendor's library has the fastest ones.

Those of W8A8 are defined by the reference; here its exact integer product is another one. Does not know layers.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from kernels.int8_weight import Int8Weight
from kernels.reference.int8_linear import by_chunks, int8_linear, quantize_rows

# The library's integer product takes more than 16 rows, and sizes that are multiples of 8.
_MIN_ROWS = 32
_MULTIPLE = 8


def linear(x: Tensor, weight: Tensor | Int8Weight, bias: Tensor | None) -> Tensor:
    if isinstance(weight, Tensor):
        return functional.linear(x, weight, bias)
    if x.device.type == "cpu":
        return int8_linear(x, weight, bias)
    values, scale = quantize_rows(x)
    out = int8_product(values, weight.values).float() * scale[:, None] * weight.scale  # [N, O]
    return (out if bias is None else out + bias.float()).to(x.dtype)


def int8_product(x: Tensor, weight: Tensor) -> Tensor:
    """int8 [N, I] and int8 [O, I] -> int32 [N, O]."""
    if any(size % _MULTIPLE for size in weight.shape):
        return by_chunks(x, weight)
    num_rows = x.shape[0]
    missing = max(_MIN_ROWS - num_rows, -num_rows % _MULTIPLE)
    return torch._int_mm(functional.pad(x, (0, 0, 0, missing)), weight.t())[:num_rows]
