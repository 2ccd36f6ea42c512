# SPDX-License-Identifier: Apache-2.0
"""The counter-based random generator: a draw depends on its key and counter only, never on what was drawn before.

Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011), on any device.
"""

from __future__ import annotations

import torch

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFFFFFF
_ROUNDS = 10


def philox(counter: tuple[torch.Tensor, ...], key: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Four int64 tensors of 32-bit words, from a counter of four and a key of two, broadcast against each other."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _KEY_STEPS[0]) & _MASK, (k1 + _KEY_STEPS[1]) & _MASK
    return c0, c1, c2, c3


def _multiply(words: torch.Tensor, multiplier: int) -> tuple[torch.Tensor, torch.Tensor]:
    """High and low word of a 32 x 32 bit product; int64 wraps, which leaves all 64 bits right."""
    product = words * multiplier
    return (product >> 32) & _MASK, product & _MASK


def exponential(
    seeds: torch.Tensor, choice_indices: torch.Tensor, positions: torch.Tensor, num_draws: int
) -> torch.Tensor:
    """float32 [R, num_draws]: draw j of a row follows Exp(1) and is keyed by (seed, choice, output position, j).

    seeds: int64 [R], of which all 64 bits count. Inverse transform -log(1 - u); small values, which decide a race, keep
    their full precision.
    """
    device = seeds.device
    blocks = torch.arange(-(-num_draws // 4), device=device)[None]  # [1, ceil(draws / 4)]
    zero = torch.zeros_like(blocks)
    counter = (blocks, positions[:, None] + zero, choice_indices[:, None] + zero, zero)
    words = torch.stack(philox(counter, (seeds[:, None] & _MASK, (seeds[:, None] >> 32) & _MASK)), dim=-1)
    draws = words.flatten(1)[:, :num_draws].contiguous()  # [R, num_draws]
    uniform = (draws.double() + 0.5) * 2.0**-32
    return -torch.log1p(-uniform).float()
