# SPDX-License-Identifier: Apache-2.0
"""The counter-based random generator: a draw depends on its key and counter only, never on what was drawn before.

Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011). A row needs one
draw a step, so the host makes it, the same for every device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kernels.sampling_rows import PART_BITS

Words = npt.NDArray[np.uint64]

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_MASK = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)
_ROUNDS = 10


def philox(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> tuple[Words, Words, Words, Words]:
    """Four arrays of 32-bit words in uint64, from a counter of four and a key of two of them, of one shape."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = (product1 >> _32) ^ c1 ^ k0, product1 & _MASK
        c2, c3 = (product0 >> _32) ^ c3 ^ k1, product0 & _MASK
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    return c0, c1, c2, c3


def draws(seeds: Sequence[int], choice_indices: Sequence[int], positions: Sequence[int]) -> npt.NDArray[np.int32]:
    """[2, R]: the upper and the lower 30 bits of a number below 2**60, one for each (seed, choice, output position).

    All 64 bits of a seed count; choices and positions are below 2**32.
    """
    seed, choice, position = (np.array(values, np.uint64) for values in (seeds, choice_indices, positions))
    zero = np.zeros_like(seed)
    upper, lower, _, _ = philox((zero, position, choice, zero), (seed & _MASK, seed >> _32))
    return (np.stack([upper, lower]) >> np.uint64(32 - PART_BITS)).astype(np.int32)
