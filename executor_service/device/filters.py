# SPDX-License-Identifier: Apache-2.0
"""Which ids top-k, top-p and min-p keep, in exact arithmetic and without sorting the vocabulary.

Scores are logarithms of probabilities, less that of the likeliest id. Ids that tie with the last one kept are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from executor_service.device.law import magnitude_bits, masses
from executor_service.device.transfer import take, upload
from executor_service.scheduling.sequence import Sampling

# Of so many ids or fewer, the last one kept is read off them in order; of more it is searched without sorting.
MAX_SORTED = 1024
# A score's 31 bits in two parts, the split that was fastest for a vocabulary of 49,152.
_UPPER_BITS = 16
_LOWER_BITS = 15
_LOWER_MASK = 0x7FFF

_Search = Callable[[Tensor, Tensor, Sequence[Sampling]], Tensor]


def has_filter(sampling: Sampling, vocabulary_size: int) -> bool:
    return _top_k(sampling, vocabulary_size) < vocabulary_size or sampling.top_p < 1 or sampling.min_p > 0


def keep(scores: Tensor, weights: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """weights with 0 for ids left out. scores: float32 [R, V], <= 0; weights: int64 [R, V], their masses."""
    return torch.where(scores < _lowest(scores, weights, samplings), 0, weights)


def _lowest(scores: Tensor, weights: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """float32 [R, 1]: the score of the last id kept."""
    device, vocabulary_size = scores.device, scores.shape[1]
    lowest = upload([math.log(s.min_p) if s.min_p else -math.inf for s in samplings], np.float32, device)[:, None]
    rows_of: dict[_Search, list[int]] = {}
    for r, sampling in enumerate(samplings):
        if search := _search(sampling, vocabulary_size):
            rows_of.setdefault(search, []).append(r)
    for search, rows in rows_of.items():
        index = upload(rows, np.int64, device)
        found = search(take(scores, index), take(weights, index), [samplings[r] for r in rows])
        lowest[index] = lowest[index].maximum(found)
    return lowest


def _search(sampling: Sampling, vocabulary_size: int) -> _Search | None:
    top_k = _top_k(sampling, vocabulary_size)
    if top_k == vocabulary_size and sampling.top_p >= 1:
        return None
    if top_k <= MAX_SORTED:
        return _last_of_best
    return _last_counted if top_k < vocabulary_size else _last_in_mass


def _last_of_best(scores: Tensor, weights: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Of top-k, then top-p. Ids that tie with the k-th have its score: the k best hold every score that can be last."""
    top_ks = [_top_k(s, scores.shape[1]) for s in samplings]
    ranks = upload(top_ks, np.int64, scores.device)[:, None] - 1
    best = scores.topk(max(top_ks)).values  # [R, K]
    kth = best.gather(1, ranks)
    if all(s.top_p >= 1 for s in samplings):
        return kth
    reach = _reach(torch.where(scores < kth, 0, weights), samplings)
    return best.gather(1, torch.searchsorted(masses(best).cumsum(dim=-1), reach).minimum(ranks))


def _last_counted(scores: Tensor, weights: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Of top-k, then top-p, for any k."""
    top_ks = upload([s.top_k for s in samplings], np.int64, scores.device)[:, None]
    kth = _first_reaching(scores, torch.ones_like(weights), top_ks)
    return _last_in_mass(scores, torch.where(scores < kth, 0, weights), samplings)


def _last_in_mass(scores: Tensor, weights: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Of top-p."""
    return _first_reaching(scores, weights, _reach(weights, samplings))


def _reach(weights: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """int64 [R, 1]: the mass that the kept ids together have at least."""
    totals = weights.sum(dim=-1, keepdim=True)
    top_ps = upload([min(s.top_p, 1) for s in samplings], np.float64, weights.device)[:, None]
    return (totals * top_ps).ceil().long().minimum(totals)


def _first_reaching(scores: Tensor, weights: Tensor, reach: Tensor) -> Tensor:
    """float32 [R, 1]: the highest score for which ids with it or a higher one weigh reach together.

    A radix search: weights are summed by the upper bits of the score, then, in the bin that reaches, by the lower ones.
    """
    bits = magnitude_bits(scores)
    upper = bits >> _LOWER_BITS
    upper_bin, before = _bin_reaching(upper, weights, reach, _UPPER_BITS)
    inside = torch.where(upper == upper_bin, weights, 0)
    lower_bin, _ = _bin_reaching(bits & _LOWER_MASK, inside, reach - before, _LOWER_BITS)
    return ((upper_bin << _LOWER_BITS) | lower_bin).int().view(torch.float32).neg()


def _bin_reaching(bins: Tensor, weights: Tensor, reach: Tensor, num_bits: int) -> tuple[Tensor, Tensor]:
    """int64 [R, 1]: the first bin where the sum from bin 0 on is at least reach, and the sum before it."""
    sums = weights.new_zeros(len(weights), 1 << num_bits).scatter_add_(1, bins.long(), weights)
    upto = sums.cumsum(dim=-1)
    first = torch.searchsorted(upto, reach).clamp_(max=sums.shape[1] - 1)  # clamped where a row holds no law
    return first, upto.gather(1, first) - sums.gather(1, first)


def _top_k(sampling: Sampling, vocabulary_size: int) -> int:
    """V where all are kept."""
    return sampling.top_k if 0 < sampling.top_k < vocabulary_size else vocabulary_size
