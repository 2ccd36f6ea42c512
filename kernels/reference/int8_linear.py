# SPDX-License-Identifier: Apache-2.0
"""The product of W8A8: each row is rounded to integers as it comes, integers are multiplied, scales come after.

Integer sums are exact, so that a row's bits can't depend on its company, on threads or on who computes them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from kernels.int8_weight import Int8Weight

# int8 [N, I] and int8 [O, I] -> int32 [N, O], for I up to 2**17: 128 * 127 * 2**17 < 2**31.
Product = Callable[[Tensor, Tensor], Tensor]

MAX_VALUE = 127
# float32 holds every sum of so many products: 128 * 127 * 1024 < 2**24.
CHUNK = 1024


def int8_linear(x: Tensor, weight: Int8Weight, bias: Tensor | None, product: Product | None = None) -> Tensor:
    """x [N, I] -> [N, O]. In float32: (sum * scale of the row) * scale of the output, + bias; then x's type.

    product: of the device, where it has one that is faster and as exact."""
    values, scale = quantize_rows(x)
    multiply = product or exact_product(x.device)
    sums = multiply(values, weight.values)  # [N, O]
    out = sums.float() * scale[:, None] * weight.scale
    return (out if bias is None else out + bias).to(x.dtype)


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [N, I] -> its integers, int8 [N, I], and scales, float32 [N]. A scale is the row's largest magnitude / 127, an
    integer is the nearest to x / scale, the even one of two. A row of zeros has scale 1."""
    x = x.float()
    scale = x.abs().amax(1) / MAX_VALUE
    # Also of rows so small that the quotient is 0.
    scale = scale.masked_fill(scale == 0, 1)
    return (x / scale[:, None]).round().clamp(-MAX_VALUE, MAX_VALUE).to(torch.int8), scale


def at_once(x: Tensor, weight: Tensor) -> Tensor:
    return torch._int_mm(x, weight.t())


def by_chunks(x: Tensor, weight: Tensor) -> Tensor:
    sums = torch.zeros(x.shape[0], weight.shape[0], dtype=torch.int32, device=x.device)
    for x_part, weight_part in zip(x.split(CHUNK, 1), weight.split(CHUNK, 1), strict=True):
        sums += (x_part.float() @ weight_part.float().t()).to(torch.int32)
    return sums


@cache
def exact_product(device: torch.device) -> Product:
    """at_once is some ten times faster. On a CPU without instructions for it, it adds pairs of products in 16 bits,
    which large ones do not fit; on a GPU it takes some shapes only."""
    if device.type != "cpu":
        return by_chunks
    largest = torch.full((32, 256), MAX_VALUE, dtype=torch.int8)
    return at_once if torch.equal(at_once(largest, largest), by_chunks(largest, largest)) else by_chunks
