# SPDX-License-Identifier: Apache-2.0
"""Logprobs of ids, and of the likeliest ids in their place, from raw logits.

Natural logarithms of the model's own distribution, before temperature, penalties and filters.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kernels.reference import law

# How many logits are scored at once: what it takes beside them stays small.
_MAX_LOGITS = 2**22
# Above every id, and small enough that twice of it is exact in float32.
_MAX_IDS = 2**22


def score(logits: Tensor, token_ids: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    """A row's first n do not depend on num_top >= n. Of equals the lower id comes first."""
    num_rows = max(1, _MAX_LOGITS // logits.shape[1])
    slices = zip(logits.split(num_rows), token_ids.split(num_rows), strict=True)
    logprobs, top_token_ids, top_logprobs = zip(*(_score(*part, num_top) for part in slices), strict=True)
    return torch.cat(logprobs), torch.cat(top_token_ids), torch.cat(top_logprobs)


def _score(logits: Tensor, token_ids: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    scores = logits - logits.amax(dim=-1, keepdim=True)
    parts = law.masses(law.scores(scores.clone(), 0, math.log2(math.e)))
    log_totals = law.total(parts).float().mul_(1 / law.ONE).log_()  # [k, 1]
    top_token_ids = _likeliest(scores, min(num_top, scores.shape[1]))
    logprobs = scores.gather(1, token_ids[:, None].long())[:, 0] - log_totals[:, 0]
    return logprobs, top_token_ids.int(), scores.gather(1, top_token_ids) - log_totals


def _likeliest(scores: Tensor, num_top: int) -> Tensor:
    """int64 [k, n], from scores float32 [k, V] <= 0.

    A vendor's topk orders equals as it likes; the n-th value of it is sure. Ids above that value come first, then those
    that have it, by a key that no two ids share: the n best are then known, each of the two kinds in order of ids.
    """
    if num_top == 0:
        return torch.empty(len(scores), 0, dtype=torch.int64, device=scores.device)
    bits = law.magnitude_bits(scores)
    last = law.magnitude_bits(scores.topk(num_top).values[:, -1:])
    kinds = law.up_to(last, bits).add_(law.up_to(last - 1, bits))  # 2 above the last value, 1 where it is, else 0
    token_ids = torch.arange(scores.shape[1], dtype=torch.int32, device=scores.device)
    best = kinds.mul_(_MAX_IDS).sub_(token_ids).float().topk(num_top).indices
    return best.gather(1, _order(bits.gather(1, best)))


def _order(keys: Tensor) -> Tensor:
    """int64 [k, n]: the places of keys [k, n], smallest first, equals in their order: of few keys."""
    places = torch.arange(keys.shape[1], device=keys.device)
    left, right = keys[:, :, None], keys[:, None, :]
    is_before = (right < left) | ((right == left) & (places < places[:, None]))
    ranks = is_before.sum(dim=-1)  # [k, n]
    return torch.empty_like(ranks).scatter_(1, ranks, places.expand_as(ranks))
