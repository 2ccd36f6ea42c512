# SPDX-License-Identifier: Apache-2.0
"""What a step's scores are on the host, row by row. Does not know how they are made."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from executor_service.scheduling.step import Scores

_NO_SCORES = (np.zeros(0, np.float32), np.zeros((0, 0), np.int32), np.zeros((0, 0), np.float32))


def split_scores(arrays: Sequence[npt.NDArray[Any]], lens: Sequence[int], num_tops: Sequence[int]) -> list[Scores]:
    """score's tensors, on the host, as one Scores for each row: its ids lie together, and it keeps its own n. No arrays
    stand for no ids."""
    logprobs, top_token_ids, top_logprobs = arrays or _NO_SCORES
    bounds = pairwise(np.cumsum([0, *lens]).tolist())
    return [
        Scores(logprobs[start:end], top_token_ids[start:end, :n], top_logprobs[start:end, :n])
        for (start, end), n in zip(bounds, num_tops, strict=True)
    ]
