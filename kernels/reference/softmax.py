# SPDX-License-Identifier: Apache-2.0
"""A softmax-weighted sum over scores that come in parts, and the product it is made of.

A part that is masked as a whole changes nothing, exactly. Does not know caches or sequences.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

ROWS = 16


class RunningSoftmax:
    """Of queries [B, K, R, D]. The first part must leave each row a score above -inf."""

    def __init__(self, queries: Tensor) -> None:
        self.maximum = queries.new_full((*queries.shape[:3], 1), -torch.inf)
        self.total = torch.zeros_like(self.maximum)
        self.value = torch.zeros_like(queries)

    def add(self, scores: Tensor, values: Tensor) -> None:
        """scores [B', K, R, C], values [B', K, C, D] of the first B' rows."""
        num_rows = len(scores)
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

    Always a batch of at least two items of 16 rows: each item is then computed by one thread, in one way.
    """
    num_rows = rows.shape[2]
    matrices = matrices.flatten(0, 1)  # [P, X, Y]
    tiles = pad(rows, (0, 0, 0, -num_rows % ROWS)).reshape(len(matrices), -1, ROWS, rows.shape[3])  # [P, m, 16, X]
    if tiles.shape[1] > 1:
        out = rows.new_empty(*tiles.shape[:3], matrices.shape[-1])
        for i in range(len(tiles)):
            torch.bmm(tiles[i], matrices[i].expand(tiles.shape[1], -1, -1), out=out[i])
    elif len(tiles) > 1:
        out = torch.bmm(tiles[:, 0], matrices)
    else:
        out = torch.bmm(tiles[0].expand(2, -1, -1), matrices.expand(2, -1, -1))[:1]
    return out.view(*rows.shape[:2], -1, matrices.shape[-1])[:, :, :num_rows]
