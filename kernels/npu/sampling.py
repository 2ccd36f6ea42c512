# SPDX-License-Identifier: Apache-2.0
"""The next id of each row, by operations that an Ascend NPU has and without reading a setting on the host.

All rows go through what one of them needs. The law is the reference's, to the bit; only the search for the last id kept
differs: no sort, no scatter, no 64 bits of the vocabulary's size.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from kernels.reference.filters import MAX_SORTED, keep_best, keep_found
from kernels.reference.law import total, up_to
from kernels.reference.sampling import Keep, drawn, or_nothing
from kernels.sampling_rows import SamplingRows

_SCORE_BITS = 31


def choose(logits: Tensor, rows: SamplingRows) -> Tensor:
    highest = logits.amax(dim=-1, keepdim=True)  # [R, 1]
    token_ids = _first_highest(logits, highest) if rows.greedy else None
    if rows.plain or rows.filtered:
        by_law = drawn(logits, highest, rows, _keep(rows))
        token_ids = by_law if token_ids is None else torch.where(rows.scales == 0, token_ids, by_law)
    assert token_ids is not None, "rows choose in some way"
    return or_nothing(token_ids, highest)


def _keep(rows: SamplingRows) -> Keep | None:
    if not rows.filtered:
        return None
    return keep_best if rows.are_topped and rows.max_top_k <= MAX_SORTED else _keep_found


def _first_highest(logits: Tensor, highest: Tensor) -> Tensor:
    """int32 [R]: of equals the first."""
    vocabulary_size = logits.shape[1]
    token_ids = torch.arange(vocabulary_size, dtype=torch.int32, device=logits.device)
    return ((logits < highest).int().mul_(vocabulary_size).add_(token_ids)).amin(dim=-1)


def by_bisection(bits: Tensor, parts: Tensor | None, reach: Tensor) -> Tensor:
    """A Search, of one bit after the other."""
    found = torch.zeros_like(bits[:, :1])
    is_in = torch.empty_like(bits)
    kept = None if parts is None else torch.empty_like(parts)
    for k in reversed(range(_SCORE_BITS)):
        up_to(found + ((1 << k) - 1), bits, out=is_in)
        if parts is None:
            weight = is_in.sum(dim=-1, keepdim=True, dtype=torch.int32).long()
        else:
            weight = total(torch.mul(parts, is_in, out=kept))
        found = found + (weight < reach).int() * (1 << k)
    return found


_keep_found = partial(keep_found, search=by_bisection)
