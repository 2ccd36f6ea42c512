# SPDX-License-Identifier: Apache-2.0
"""Which ids top-k, top-p and min-p keep, in exact arithmetic and without sorting the vocabulary.

A score is compared as its magnitude's 31 bits, which grow as it falls. Ids that tie with the last one kept are kept.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kernels.reference.law import joined, magnitude_bits, masses, share, total, up_to
from kernels.sampling_rows import SamplingRows

# Of so many ids or fewer, the last one kept is read off them in order; of more it is searched without sorting. The
# masses of so many sum to no more than a tile's.
MAX_SORTED = 1024
# A score's 31 bits in two parts, the split that was fastest for a vocabulary of 49,152.
_UPPER_BITS = 16
_LOWER_BITS = 15
_LOWER_MASK = 0x7FFF

# From bits int32 [R, W], what each id weighs, int32 [2, R, W] or 1 where None, and a reach, int64 [R, 1]: the least
# bits, int32 [R, 1], for which ids with such or fewer weigh reach together.
Search = Callable[[Tensor, Tensor | None, Tensor], Tensor]


def keep_likely(scores: Tensor, parts: Tensor, rows: SamplingRows) -> Tensor:
    """By min-p alone: parts, the masses int32 [2, R, W] of scores float32 [R, W], with 0 for ids left out. In the same
    memory, as in all that follow."""
    return parts.mul_(up_to(magnitude_bits(rows.min_scores)[:, None], magnitude_bits(scores)))


def keep_best(scores: Tensor, parts: Tensor, rows: SamplingRows) -> Tensor:
    """Where every row has a top-k, of at most max_top_k, and that is at most MAX_SORTED; what it makes of others is
    nobody's. Ids that tie with the k-th have its score: the k best hold every score that can be last."""
    bits = magnitude_bits(scores)
    best = scores.topk(rows.max_top_k).values  # [R, k]
    ranks = (rows.top_ks[:, None].long() - 1).clamp_(max=rows.max_top_k - 1)
    parts.mul_(up_to(magnitude_bits(best.gather(1, ranks)), bits))
    upto = joined(masses(best).cumsum(dim=-1, dtype=torch.int32))
    num_short = (upto < _reach(parts, rows)).sum(dim=-1, keepdim=True)
    last = best.gather(1, num_short.minimum(ranks))
    return parts.mul_(up_to(magnitude_bits(last.maximum(rows.min_scores[:, None])), bits))


def keep_found(scores: Tensor, parts: Tensor, rows: SamplingRows, search: Search) -> Tensor:
    """For any settings."""
    bits = magnitude_bits(scores)
    if rows.max_top_k:
        parts.mul_(up_to(_kth(scores, bits, rows, search), bits))
    last = search(bits, parts, _reach(parts, rows)).minimum(magnitude_bits(rows.min_scores)[:, None])
    return parts.mul_(up_to(last, bits))


def _reach(parts: Tensor, rows: SamplingRows) -> Tensor:
    """int64 [R, 1]: the mass that the ids kept by top-p together have at least."""
    return share(total(parts), rows.top_ps[:, None].long())


def _kth(scores: Tensor, bits: Tensor, rows: SamplingRows, search: Search) -> Tensor:
    """int32 [R, 1]: the bits of the k-th best score, of the last of all where a row has no top-k."""
    top_ks = rows.top_ks[:, None].long()
    if rows.max_top_k > MAX_SORTED:
        return search(bits, None, top_ks)
    best = scores.topk(rows.max_top_k).values
    kth = best.gather(1, (top_ks - 1).clamp_(max=rows.max_top_k - 1))
    return magnitude_bits(kth.masked_fill_(top_ks > rows.max_top_k, -torch.inf))


def by_radix(bits: Tensor, parts: Tensor | None, reach: Tensor) -> Tensor:
    """A Search: weights are summed by the upper bits of the score, then, in the bin that reaches, by the lower ones."""
    weights = torch.ones_like(bits, dtype=torch.int64) if parts is None else joined(parts)
    upper = bits >> _LOWER_BITS
    upper_bin, before = _bin_reaching(upper, weights, reach, _UPPER_BITS)
    weights.mul_(upper == upper_bin.int())
    lower_bin, _ = _bin_reaching(bits & _LOWER_MASK, weights, reach - before, _LOWER_BITS)
    return ((upper_bin << _LOWER_BITS) | lower_bin).int()


def _bin_reaching(bins: Tensor, weights: Tensor, reach: Tensor, num_bits: int) -> tuple[Tensor, Tensor]:
    """int64 [R, 1]: the first bin where the sum from bin 0 on is at least reach, and the sum before it."""
    sums = weights.new_zeros(len(weights), 1 << num_bits).scatter_add_(1, bins.long(), weights)
    upto = sums.cumsum(dim=-1)
    first = torch.searchsorted(upto, reach).clamp_(max=sums.shape[1] - 1)  # clamped where a row holds no law
    return first, upto.gather(1, first) - sums.gather(1, first)
