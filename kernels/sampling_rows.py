# SPDX-License-Identifier: Apache-2.0
"""How each row of a step chooses its next id, in numbers that every device computes with alike.

Probabilities and draws are integers of 30 bits; a comparison of integers has one result on all devices. Does not know
sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

PART_BITS = 30
# Of a row of which no id is allowed, instead of one.
NOTHING_ALLOWED = -2


@dataclass(frozen=True, eq=False)
class SamplingRows:
    """R rows, as tensors on the device and, where the host lays out the work, as what it knows of them.

    scales: float32 [R], log2(e) / temperature, 0 where the likeliest is taken. top_ks: int32 [R], V where all are kept.
    top_ps: int32 [R], in parts of 2**30, which keeps all. min_scores: float32 [R], log2(min_p), -inf where all are
    kept. draws: int32 [2, R], the upper and the lower 30 bits of a draw below 2**60.
    greedy, plain, filtered: the rows that take the likeliest, that draw from all, that draw from what filters keep.
    max_top_k: of the filtered rows whose top-k keeps less than V, 0 where there are none. are_topped: every row that
    draws is such a row.
    """

    scales: Tensor
    top_ks: Tensor
    top_ps: Tensor
    min_scores: Tensor
    draws: Tensor
    greedy: tuple[int, ...]
    plain: tuple[int, ...]
    filtered: tuple[int, ...]
    max_top_k: int
    are_topped: bool = False
