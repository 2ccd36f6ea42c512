# SPDX-License-Identifier: Apache-2.0
"""Probabilities as integers: each is computed from its score by the same correctly rounded operations on every device,
and sums of them do not depend on order, width, batch or threads.

Does not know settings. Nothing of the vocabulary's size is wider than 32 bits; only sums of tiles have 64.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from kernels.sampling_rows import PART_BITS

# 2**f on [-0.5, 0.5] from the power 0 on, each a float32. The largest relative error, 9.4e-8, is about the least that a
# polynomial of degree 5 through 1 can have.
COEFFICIENTS = (
    1.0,
    0.6931470036506653,
    0.24022246897220612,
    0.0555071085691452,
    0.009671291336417198,
    0.0013269518967717886,
)
# Scores below it have no mass.
LOWEST_SCORE = -41.0
# A mass is hi * 2**20 + lo. The likeliest id's is 2**40; hi, and lo, of a tile's ids sum to at most 2**30.
MASS_PART = 2**20
ONE = MASS_PART**2
TILE = 1024
_MANTISSA = 2**23
_SIGN_OFF = 0x7FFFFFFF


def scores(logits: Tensor, highest: Tensor | float, scales: Tensor | float) -> Tensor:
    """float32 [R, W] <= 0, logarithms to the base 2, in the place of logits [R, V]: of the highest of each row and its
    scale, float32 [R, 1]. W is a multiple of TILE; past V they are -inf. Taking the highest off first keeps large
    scales in range."""
    scores = logits.sub_(highest).mul_(scales)
    past = -scores.shape[1] % TILE
    return pad(scores, (0, past), value=-torch.inf) if past else scores


def masses(scores: Tensor) -> Tensor:
    """int32 [2, ...], hi and lo, of scores <= 0 [...]. Every operation is rounded by itself.

    In three buffers, for new memory costs as much as all the rest.
    """
    parts = torch.empty(2, *scores.shape, dtype=torch.int32, device=scores.device)
    whole, powers = parts.view(torch.float32)
    rest = scores.clamp(min=LOWEST_SCORE)  # there, too, the mass is 0
    torch.add(rest, 0.5, out=whole).floor_()
    rest.sub_(whole)
    *lower, last = (coefficient * MASS_PART for coefficient in COEFFICIENTS)
    torch.mul(rest, last, out=powers)
    for coefficient in lower[:0:-1]:
        powers.add_(coefficient).mul_(rest)
    powers.add_(lower[0])
    exponents = rest.view(torch.int32).copy_(whole.mul_(_MANTISSA))
    parts[1].add_(exponents)  # the powers times 2**whole
    parts[0].copy_(powers)  # without what is behind the point
    parts[1].copy_(torch.sub(powers, rest.copy_(parts[0]), out=rest).mul_(MASS_PART))
    return parts


def magnitude_bits(scores: Tensor) -> Tensor:
    """int32 >= 0, of float32 scores <= 0: grows as the score falls, and is equal where scores are (0 and -0 too)."""
    return scores.view(torch.int32) & _SIGN_OFF


def up_to(last: Tensor, bits: Tensor, out: Tensor | None = None) -> Tensor:
    """int32 [R, W]: 1 where bits are at most last [R, 1], else 0. Faster than a comparison."""
    return torch.sub(last + 1, bits, out=out).clamp_(0, 1)


def tile_sums(parts: Tensor) -> Tensor:
    """int64 [R, T], of masses int32 [2, R, T * TILE]."""
    return joined(parts.unflatten(-1, (-1, TILE)).sum(-1, dtype=torch.int32))


def total(parts: Tensor) -> Tensor:
    """int64 [R, 1]."""
    return tile_sums(parts).sum(dim=-1, keepdim=True)


def joined(parts: Tensor) -> Tensor:
    """int64 [...], of hi and lo, int32 [2, ...]."""
    return parts[0].long().mul_(MASS_PART).add_(parts[1].long())


def share(totals: Tensor, upper: Tensor, lower: Tensor | int = 0) -> Tensor:
    """The totals, int64 below 2**60, times (upper * 2**30 + lower) / 2**60, rounded down; never the total itself where
    upper is below 2**30."""
    high: Tensor = totals // 2**PART_BITS
    low = totals & (2**PART_BITS - 1)
    rest: Tensor = (low * upper + high * lower) // 2**PART_BITS
    return high * upper + rest


def draw(parts: Tensor, draws: Tensor) -> Tensor:
    """int64 [R]: an id of each row, distributed as its masses, int32 [2, R, T * TILE]; draws: int32 [2, R].

    Inverse transform over ids in their order: the tile first, then the id in it. Rows that hold no law get any id.
    """
    sums = tile_sums(parts)
    upto = sums.cumsum(dim=-1)  # [R, T]
    target = share(upto[:, -1:], *draws.long()[:, :, None])  # [R, 1]
    tile = _num_at_most(upto, target)
    target = target - (upto - sums).gather(1, tile)
    inside = parts.unflatten(-1, (-1, TILE)).take_along_dim(tile[None, :, :, None], dim=2)[:, :, 0]  # [2, R, TILE]
    return (tile * TILE + _num_at_most(joined(inside.cumsum(dim=-1, dtype=torch.int32)), target))[:, 0]


def _num_at_most(ascending: Tensor, target: Tensor) -> Tensor:
    """int64 [R, 1]: the first place in ascending [R, n] that is above the target [R, 1], or the last place."""
    return (ascending <= target).sum(dim=-1, keepdim=True).clamp_(max=ascending.shape[1] - 1)
