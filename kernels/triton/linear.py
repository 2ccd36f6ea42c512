# SPDX-License-Identifier: Apache-2.0
"""Products with weights: the vendor's library has the fastest ones.

Those of W8A8 are the reference's, on a GPU with another exact product of integers. Does not know layers.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from kernels.int8_weight import Int8Weight
from kernels.reference.int8_linear import by_chunks, int8_linear

# The library's integer product takes more than 16 rows, and sizes that are multiples of 8.
_MIN_ROWS = 32
_MULTIPLE = 8


def linear(x: Tensor, weight: Tensor | Int8Weight, bias: Tensor | None) -> Tensor:
    if isinstance(weight, Tensor):
        return functional.linear(x, weight, bias)
    return int8_linear(x, weight, bias, None if x.device.type == "cpu" else int8_product)


def int8_product(x: Tensor, weight: Tensor) -> Tensor:
    """int8 [N, I] and int8 [O, I] -> int32 [N, O]."""
    if any(size % _MULTIPLE for size in weight.shape):
        return by_chunks(x, weight)
    num_rows = x.shape[0]
    missing = max(_MIN_ROWS - num_rows, -num_rows % _MULTIPLE)
    return torch._int_mm(functional.pad(x, (0, 0, 0, missing)), weight.t())[:num_rows]
