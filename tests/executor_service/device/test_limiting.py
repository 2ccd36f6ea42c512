# SPDX-License-Identifier: Apache-2.0
"""What limits leave out, bit by bit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from executor_service.device.limiting import apply_limits, limit_arrays
from executor_service.scheduling.step import Limits
from tests.fixtures.sampling_rows import mask_of


def limited(logits: torch.Tensor, limits: Sequence[Limits | None]) -> torch.Tensor:
    sent = {name: torch.tensor(array) for name, array in limit_arrays(limits).items()}
    apply_limits(logits, sent)
    return logits


def test_words_are_read_from_the_lowest_bit() -> None:
    words = np.random.default_rng(0).integers(0, 2**32, (3, 4), dtype=np.uint32)
    words[0] |= np.uint32(1 << 31)
    logits = limited(torch.zeros(3, 100), [Limits(mask=mask) for mask in words])
    for row, row_words in zip(logits.isfinite(), words, strict=True):
        assert row.tolist() == [bool(int(row_words[i // 32]) >> i % 32 & 1) for i in range(100)]


def test_each_row_loses_what_its_own_limits_name() -> None:
    logits = limited(
        torch.zeros(4, 70),
        [Limits(banned=(0, 69)), None, Limits(mask=mask_of([1, 33, 69], 70), banned=(33,)), Limits()],
    )
    assert [row.isfinite().nonzero()[:, 0].tolist() for row in logits] == [
        list(range(1, 69)),
        list(range(70)),
        [1, 69],
        list(range(70)),
    ]
