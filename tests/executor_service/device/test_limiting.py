# SPDX-License-Identifier: Apache-2.0
"""What limits leave out, bit by bit."""

from __future__ import annotations

import numpy as np
import torch

from executor_service.device.limiting import apply_limits, unpacked
from executor_service.scheduling.step import Limits
from tests.fixtures.sampling_rows import CPU, mask_of


def test_words_are_read_from_the_lowest_bit() -> None:
    words = np.random.default_rng(0).integers(0, 2**32, (3, 4), dtype=np.uint32)
    bits = unpacked(list(words), 100, CPU)
    for row, row_words in zip(bits, words, strict=True):
        assert row.tolist() == [bool(int(row_words[i // 32]) >> i % 32 & 1) for i in range(100)]


def test_each_row_loses_what_its_own_limits_name() -> None:
    logits = torch.zeros(4, 70)
    apply_limits(logits, [Limits(banned=(0, 69)), None, Limits(mask=mask_of([1, 33, 69], 70), banned=(33,)), Limits()])
    assert [row.isfinite().nonzero()[:, 0].tolist() for row in logits] == [
        list(range(1, 69)),
        list(range(70)),
        [1, 69],
        list(range(70)),
    ]
