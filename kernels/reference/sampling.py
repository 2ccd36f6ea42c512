# SPDX-License-Identifier: Apache-2.0
"""The next id of each row: a row pays for one maximum, for one sum, or for a search beside it.

Rows are told apart by reading their settings, which costs no wait on a CPU. Does not know sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from kernels.reference.filters import MAX_SORTED, by_radix, keep_best, keep_found, keep_likely
from kernels.reference.law import draw, masses, scores
from kernels.sampling_rows import NOTHING_ALLOWED, PART_BITS, SamplingRows

# So many logits at once, and a row: what is made of them stays in a core's cache.
_MAX_LOGITS = 2**16

# From scores [R, W] and masses [2, R, W], these with 0 for ids left out.
Keep = Callable[[Tensor, Tensor, SamplingRows], Tensor]
_keep_found = partial(keep_found, search=by_radix)


def choose(logits: Tensor, rows: SamplingRows) -> Tensor:
    highest = logits.amax(dim=-1, keepdim=True)  # [R, 1]
    token_ids = torch.empty(len(logits), dtype=torch.int32, device=logits.device)
    if rows.greedy:
        index = torch.tensor(rows.greedy, device=logits.device)
        token_ids[index] = _taken(logits, index).max(dim=-1).indices.int()  # the first of equals
    for keep, of_filter in _by_filter(rows, logits.shape[1]).items():
        for index in torch.tensor(of_filter, device=logits.device).split(1 + _MAX_LOGITS // logits.shape[1]):
            part = _rows_of(rows, index, logits.shape[1])
            token_ids[index] = drawn(_taken(logits, index), highest[index], part, keep)
    return or_nothing(token_ids, highest)


def drawn(logits: Tensor, highest: Tensor, rows: SamplingRows, keep: Keep | None) -> Tensor:
    """int32 [R], from logits [R, V] and the highest of each row [R, 1]. Uses up logits."""
    last_id = logits.shape[1] - 1
    found = scores(logits, highest, rows.scales[:, None])
    parts = masses(found)
    if keep:
        parts = keep(found, parts, rows)
    return draw(parts, rows.draws).clamp_(max=last_id).int()  # clamped where a row holds no law


def or_nothing(token_ids: Tensor, highest: Tensor) -> Tensor:
    return token_ids.masked_fill_(highest[:, 0] == -torch.inf, NOTHING_ALLOWED)


def _by_filter(rows: SamplingRows, vocabulary_size: int) -> dict[Keep | None, list[int]]:
    """The rows that draw, by what leaves out ids."""
    by_filter: dict[Keep | None, list[int]] = {None: list(rows.plain)} if rows.plain else {}
    top_ks, top_ps = rows.top_ks.tolist(), rows.top_ps.tolist()
    for r in rows.filtered:
        by_filter.setdefault(_filter(top_ks[r], top_ps[r], vocabulary_size), []).append(r)
    return by_filter


def _filter(top_k: int, top_p: int, vocabulary_size: int) -> Keep:
    if top_k == vocabulary_size and top_p == 1 << PART_BITS:
        return keep_likely
    return keep_best if top_k <= MAX_SORTED else _keep_found


def _rows_of(rows: SamplingRows, index: Tensor, vocabulary_size: int) -> SamplingRows:
    """What these rows have; where the vocabulary itself is small, its size is a top-k as any."""
    top_ks = rows.top_ks[index]
    limits = [top_k for top_k in top_ks.tolist() if top_k < max(vocabulary_size, MAX_SORTED + 1)]
    return replace(
        rows,
        scales=rows.scales[index],
        top_ks=top_ks,
        top_ps=rows.top_ps[index],
        min_scores=rows.min_scores[index],
        draws=rows.draws[:, index],
        max_top_k=max(limits, default=0),
    )


def _taken(logits: Tensor, index: Tensor) -> Tensor:
    """A copy of these rows, or, where they are all, logits themselves."""
    return logits if len(index) == len(logits) else logits[index]
