# SPDX-License-Identifier: Apache-2.0
"""A matrix product whose rows have the same bits at every row count and with any number of threads.

BLAS chooses how to sum by the shape of a product and by its threads. So one product is the definition: 16 rows against
the two halves of the weight, as a batch, where each item is computed by one thread in one way. Faster products take its
place, for each number of rows, where a trial shows that their bits are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from kernels.int8_weight import Int8Weight
from kernels.reference.int8_linear import int8_linear

# [rows, I] and [O, I] -> [rows, O], possibly a view.
Product = Callable[[Tensor, Tensor], Tensor]

ROWS = 16
SIZES = (4, 8, 16, 32, 64, 128, 256, 512)
# Fewer rows are faster as columns of the other factor, more rows as rows.
MAX_COLUMNS = 32
# A trial makes a weight of its own; it should not take more memory than this (float32: 256 MiB).
MAX_TRIAL_VALUES = 1 << 26


def linear(x: Tensor, weight: Tensor | Int8Weight, bias: Tensor | None) -> Tensor:
    if isinstance(weight, Int8Weight):
        return int8_linear(x, weight, bias)
    x = x.contiguous()  # as in a trial
    parts = [
        filled_product(x[start : start + size], size, product, weight) for start, size, product in tiles(x, weight)
    ]
    out = parts[0] if len(parts) == 1 else torch.cat([x.new_empty(0, weight.shape[0]), *parts])  # [N, O]
    return out if bias is None else out + bias


def filled_product(x: Tensor, size: int, product: Product, weight: Tensor) -> Tensor:
    """x of at most size rows, filled up to that many for the product."""
    num_rows = x.shape[0]
    if num_rows == size:
        return product(x, weight)
    return product(pad(x, (0, 0, 0, size - num_rows)), weight)[:num_rows]


def tiles(x: Tensor, weight: Tensor) -> Iterator[tuple[int, int, Product]]:
    """(first row, rows of the tile, its product): the largest that fit, then the smallest that holds what is left."""
    key = (*weight.shape, x.dtype, x.device, torch.get_num_threads())
    start, num_rows = 0, x.shape[0]
    for size in SIZES[::-1]:
        while num_rows - start >= size and (product := exact_product(size, *key)):
            yield start, size, product
            start += size
    for size in SIZES:
        if start < num_rows <= start + size and (product := exact_product(size, *key)):
            yield start, size, product
            return


def by_halves(x: Tensor, weight: Tensor) -> Tensor:
    num_outputs, num_inputs = weight.shape
    half = (num_outputs + 1) // 2
    # Of an odd number of outputs the middle one is in both halves.
    halves = weight.as_strided((2, half, num_inputs), ((num_outputs - half) * num_inputs, num_inputs, 1))
    product = torch.bmm(halves, x.t().expand(2, -1, -1))  # [2, O / 2, rows]
    if num_outputs % 2:
        return torch.cat((product[0], product[1, 1:])).t()
    return product.view(num_outputs, x.shape[0]).t()


def by_columns(x: Tensor, weight: Tensor) -> Tensor:
    return torch.mm(weight, x.t()).t()


def by_rows(x: Tensor, weight: Tensor) -> Tensor:
    return torch.mm(x, weight.t())


@cache
def exact_product(
    num_rows: int, num_outputs: int, num_inputs: int, dtype: torch.dtype, device: torch.device, num_threads: int
) -> Product | None:
    """The first that has the definition's bits for so many random rows. num_threads only keys the answer."""
    candidates = (by_columns, by_halves) if num_rows <= MAX_COLUMNS else (by_rows, by_columns, by_halves)
    if num_outputs * num_inputs > MAX_TRIAL_VALUES:
        return by_halves if num_rows == ROWS else None
    generator = torch.Generator(device).manual_seed(0)
    weight = torch.rand(num_outputs, num_inputs, dtype=dtype, device=device, generator=generator) - 0.5
    x = torch.rand(max(num_rows, ROWS), num_inputs, dtype=dtype, device=device, generator=generator) - 0.5
    expected = torch.cat([by_halves(part, weight) for part in x.split(ROWS)])[:num_rows]
    return next((p for p in candidates if torch.equal(p(x[:num_rows], weight), expected)), None)
