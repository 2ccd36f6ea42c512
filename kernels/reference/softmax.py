# SPDX-License-Identifier: Apache-2.0
"""A softmax-weighted sum over scores that come in parts, and the product it is made of.

A part that is masked as a whole changes nothing, exactly. Does not know caches or sequences.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn.functional import pad

ROWS = 16
# Decode rows are as many as query heads share a key head.
SMALL_ITEMS = (4, 8)


class RunningSoftmax:
    """Grows by parts of the context; a later part may be of the first rows only."""

    def __init__(self, scores: Tensor, values: Tensor) -> None:
        """The first part: scores [B, K, R, C], values [B, K, C, D]."""
        # Of a row that is masked as a whole so far it is the least number: its weights are 0, not NaN, and fade to 0.
        self.maximum = scores.amax(-1, keepdim=True).clamp_(min=torch.finfo(scores.dtype).min)
        weights = torch.exp(scores - self.maximum)
        self.total = weights.sum(-1, keepdim=True)
        self.value = product(weights, values)

    def add(self, scores: Tensor, values: Tensor) -> None:
        """scores [B', K, R, C], values [B', K, C, D] of the first B' rows."""
        num_rows = scores.shape[0]
        before = self.maximum[:num_rows]
        maximum = torch.maximum(before, scores.amax(-1, keepdim=True))
        weights = torch.exp(scores - maximum)
        fade = torch.exp(before - maximum)
        self.total[:num_rows].mul_(fade).add_(weights.sum(-1, keepdim=True))
        self.value[:num_rows].mul_(fade).add_(product(weights, values))
        before.copy_(maximum)

    def result(self) -> Tensor:
        return self.value / self.total


def product(rows: Tensor, matrices: Tensor) -> Tensor:
    """rows [B, K, R, X] times matrices [B, K, X, Y] -> [B, K, R, Y].

    Always a batch of at least two items of a fixed number of rows: each is computed by one thread, in one way.
    """
    num_rows = rows.shape[2]
    matrices = matrices.flatten(0, 1)  # [P, X, Y]
    is_transposed = matrices.stride(-1) != 1
    size = item_rows(num_rows, *matrices.shape[1:], is_transposed, rows.dtype, rows.device, torch.get_num_threads())
    filled = pad(rows, (0, 0, 0, -num_rows % size)) if num_rows % size else rows
    tiles = filled.reshape(matrices.shape[0], -1, size, rows.shape[3])  # [P, m, size, X]
    if tiles.shape[1] > 1:
        out = rows.new_empty(*tiles.shape[:3], matrices.shape[-1])
        for i in range(tiles.shape[0]):
            torch.bmm(tiles[i], matrices[i].expand(tiles.shape[1], -1, -1), out=out[i])
    elif tiles.shape[0] > 1:
        out = torch.bmm(tiles[:, 0], matrices)
    else:
        out = torch.bmm(tiles[0].expand(2, -1, -1), matrices.expand(2, -1, -1))[:1]
    return out.view(*rows.shape[:2], -1, matrices.shape[-1])[:, :, :num_rows]


@cache
def item_rows(
    num_rows: int,
    num_inputs: int,
    num_outputs: int,
    is_transposed: bool,
    dtype: torch.dtype,
    device: torch.device,
    num_threads: int,
) -> int:
    """ROWS, or fewer where fewer are asked for and a trial shows the same bits. num_threads only keys the answer."""
    generator = torch.Generator(device).manual_seed(0)
    x = torch.rand(2, ROWS, num_inputs, dtype=dtype, device=device, generator=generator) - 0.5
    shape = (2, num_outputs, num_inputs) if is_transposed else (2, num_inputs, num_outputs)
    matrices = torch.rand(shape, dtype=dtype, device=device, generator=generator) - 0.5
    matrices = matrices.mT if is_transposed else matrices
    expected = torch.bmm(x, matrices)
    fewer = (size for size in (num_rows, *SMALL_ITEMS) if num_rows <= size < ROWS)
    return next((n for n in fewer if torch.equal(torch.bmm(x[:, :n].contiguous(), matrices), expected[:, :n])), ROWS)
