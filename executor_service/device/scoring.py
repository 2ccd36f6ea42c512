# SPDX-License-Identifier: Apache-2.0
"""Logprobs of ids, and of the likeliest ids in their place, from raw logits.

Natural logarithms of the model's own distribution, before temperature, penalties and filters.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from executor_service.device import law
from executor_service.scheduling.step import Scores

# How many logits are scored at once: what it takes beside them stays small.
_MAX_LOGITS = 2**22
_ID_BITS = 32
_ID_MASK = 0xFFFFFFFF

_NO_SCORES = (np.zeros(0, np.float32), np.zeros((0, 0), np.int32), np.zeros((0, 0), np.float32))


def score(logits: Tensor, token_ids: Tensor, num_top: int) -> list[Tensor]:
    """The tensors of Scores, of token_ids (int64 [k]) under logits (float32 [k, V]), k > 0.

    A row's first n do not depend on num_top >= n. Of equals the lower id comes first.
    """
    num_rows = max(1, _MAX_LOGITS // logits.shape[1])
    slices = zip(logits.split(num_rows), token_ids.split(num_rows), strict=True)
    parts = [_score(logits, token_ids, num_top) for logits, token_ids in slices]
    return [torch.cat(tensors) for tensors in zip(*parts, strict=True)]


def split_scores(arrays: Sequence[npt.NDArray[Any]], lens: Sequence[int], num_tops: Sequence[int]) -> list[Scores]:
    """score's tensors, on the host, as one Scores for each row: its ids lie together, and it keeps its own n. No arrays
    stand for no ids."""
    logprobs, top_token_ids, top_logprobs = arrays or _NO_SCORES
    bounds = pairwise(np.cumsum([0, *lens]).tolist())
    return [
        Scores(logprobs[start:end], top_token_ids[start:end, :n], top_logprobs[start:end, :n])
        for (start, end), n in zip(bounds, num_tops, strict=True)
    ]


def _score(logits: Tensor, token_ids: Tensor, num_top: int) -> tuple[Tensor, Tensor, Tensor]:
    scores = logits - logits.amax(dim=-1, keepdim=True)
    totals = law.masses(scores).sum(dim=-1, keepdim=True)
    log_totals = (totals.double() / law.ONE).log().float()  # [k, 1]
    top_token_ids = _likeliest(scores, num_top)
    logprobs = scores.gather(1, token_ids[:, None])[:, 0] - log_totals[:, 0]
    return logprobs, top_token_ids.int(), scores.gather(1, top_token_ids) - log_totals


def _likeliest(scores: Tensor, num_top: int) -> Tensor:
    """int64 [k, n], from scores float32 [k, V] <= 0; n is V where V is less. Keys of score and id are never equal."""
    if num_top == 0:
        return torch.empty(len(scores), 0, dtype=torch.int64, device=scores.device)
    token_ids = torch.arange(scores.shape[1], device=scores.device)
    keys = (law.magnitude_bits(scores).long() << _ID_BITS) | token_ids
    return keys.topk(min(num_top, scores.shape[1]), largest=False).values & _ID_MASK
