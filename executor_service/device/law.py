# SPDX-License-Identifier: Apache-2.0
"""Probabilities as integers: their sums do not depend on order, width, batch, threads or device.

Does not know settings or rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

# The mass of the likeliest id. Up to 2**22 ids sum to less than 2**63.
ONE = 2.0**40
_SIGN_OFF = 0x7FFFFFFF


def masses(scores: Tensor) -> Tensor:
    """int64, of scores <= 0: exp(score), where 1 is ONE. -inf and what is below 2**-40 have none."""
    return scores.exp().mul_(ONE).long()


def magnitude_bits(scores: Tensor) -> Tensor:
    """int32 >= 0, of float32 scores <= 0: grows as the score falls, and is equal where scores are (0 and -0 too)."""
    return scores.view(torch.int32) & _SIGN_OFF


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """int64 [R]: an id of each row, distributed as its weights.

    weights: int64 [R, V], >= 0. uniforms: float64 [R], at most 1 - 2**-53, so that no product rounds up to the total.
    Inverse transform over ids in their order. Rows that hold no law get any id.
    """
    sums = weights.cumsum(dim=-1)
    targets = (sums[:, -1:] * uniforms[:, None]).long()
    return torch.searchsorted(sums, targets, right=True)[:, 0].clamp(max=weights.shape[1] - 1)
