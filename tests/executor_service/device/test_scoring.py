# SPDX-License-Identifier: Apache-2.0
"""A step's scores come apart into what each row asked for."""

from __future__ import annotations

import numpy as np

from executor_service.device.scoring import split_scores


def test_rows_get_their_own_part_and_number() -> None:
    arrays = [np.arange(4, dtype=np.float32), np.arange(12, dtype=np.int32).reshape(4, 3), np.zeros((4, 3), np.float32)]
    first, none, last = split_scores(arrays, [1, 0, 3], [3, 2, 1])
    assert (first.top_token_ids.tolist(), none.top_token_ids.shape) == ([[0, 1, 2]], (0, 2))
    assert (last.logprobs.tolist(), last.top_token_ids.tolist()) == ([1, 2, 3], [[3], [6], [9]])
    assert last.top_logprobs.shape == (3, 1)
    assert [len(scores.logprobs) for scores in split_scores([], [0, 0], [3, 0])] == [0, 0]
