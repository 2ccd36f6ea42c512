# SPDX-License-Identifier: Apache-2.0
"""A matrix product whose rows have the same bits at every row count and with any number of threads.

BLAS chooses how to sum by the shape of a product and by its threads. So rows are cut into tiles of fixed shape, and a
tile's product is a batch of two halves of the weight: each item of a batch is computed by one thread, in one way.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

ROWS = 16
# Faster where there are many rows, and taken where their bits equal those of 16 rows.
LARGE_TILES = (128, 64, 32)
# A probe makes a weight of its own; it should not take more memory than this (float32: 256 MiB).
MAX_PROBED_WEIGHTS = 1 << 26


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    out = x.new_empty(len(x), len(weight))  # [N, O]
    for start, num_rows in tiles(x, weight):
        tile = x[start : start + num_rows]
        out[start : start + num_rows] = tile_product(tile, weight, num_rows).narrow(0, 0, len(tile))
    return out if bias is None else out.add_(bias)


def tile_product(x: Tensor, weight: Tensor, num_rows: int) -> Tensor:
    """x of at most num_rows rows, filled up to that many -> [num_rows, O], a view."""
    x = pad(x, (0, 0, 0, num_rows - len(x)))
    num_outputs, num_inputs = weight.shape
    half = (num_outputs + 1) // 2
    # Of an odd number of outputs the middle one is in both halves.
    halves = weight.as_strided((2, half, num_inputs), ((num_outputs - half) * num_inputs, num_inputs, 1))
    product = torch.bmm(halves, x.t().expand(2, -1, -1))  # [2, O / 2, num_rows]
    if num_outputs % 2:
        return torch.cat((product[0], product[1, 1:])).t()
    return product.view(num_outputs, num_rows).t()


def tiles(x: Tensor, weight: Tensor) -> Iterator[tuple[int, int]]:
    """(first row, rows of the tile), the last tile possibly longer than what is left."""
    num_rows, sizes = len(x), [ROWS]
    if num_rows >= LARGE_TILES[-1]:
        sizes = [*exact_tiles(weight.shape[0], weight.shape[1], x.dtype, x.device, torch.get_num_threads()), ROWS]
    start = 0
    for size in sizes:
        while num_rows - start >= size:
            yield start, size
            start += size
    if start < num_rows:
        yield start, ROWS


@cache
def exact_tiles(
    num_outputs: int, num_inputs: int, dtype: torch.dtype, device: torch.device, num_threads: int
) -> tuple[int, ...]:
    """Large tiles whose products have the bits of 16-row tiles, tried on random numbers once for each shape and number
    of threads."""
    if num_outputs * num_inputs > MAX_PROBED_WEIGHTS:
        return ()
    generator = torch.Generator(device).manual_seed(0)
    weight = torch.rand(num_outputs, num_inputs, dtype=dtype, device=device, generator=generator) - 0.5
    x = torch.rand(LARGE_TILES[0], num_inputs, dtype=dtype, device=device, generator=generator) - 0.5
    expected = torch.cat([tile_product(x[start : start + ROWS], weight, ROWS) for start in range(0, len(x), ROWS)])
    return tuple(size for size in LARGE_TILES if torch.equal(tile_product(x[:size], weight, size), expected[:size]))
