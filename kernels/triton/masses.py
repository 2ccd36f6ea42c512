# SPDX-License-Identifier: Apache-2.0
"""The law of kernels.reference.law inside a kernel: scores and masses of a tile of ids, and sums of masses.

Every operation is one rounded one: kernels that use it are compiled without contraction into fused ones. int32 in
tiles, int64 in sums of them. Does not know filters or draws.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl

from kernels.reference import law

LOWEST_SCORE = tl.constexpr(law.LOWEST_SCORE)
C1, C2, C3, C4, C5 = (tl.constexpr(coefficient) for coefficient in law.COEFFICIENTS[1:])
MASS_PART_BITS = tl.constexpr(20)
MASS_PART = tl.constexpr(1 << 20)
PART_BITS = tl.constexpr(30)
PART_MASK = tl.constexpr((1 << 30) - 1)
MANTISSA_BITS = tl.constexpr(23)
EXPONENT_BIAS = tl.constexpr(127)
SIGN_OFF = tl.constexpr(0x7FFFFFFF)
HALF_BITS = tl.constexpr(16)
HALF_MASK = tl.constexpr(0xFFFF)


@triton.jit
def tile_scores(logits, start, vocabulary_size, highest, scale, TILE: tl.constexpr):
    """float32 [TILE] <= 0, -inf past the vocabulary."""
    place = start + tl.arange(0, TILE)
    values = tl.load(logits + place, mask=place < vocabulary_size, other=float("-inf"))
    return (values - highest) * scale


@triton.jit
def magnitude(scores):
    """int32 >= 0: grows as a score <= 0 falls."""
    return scores.to(tl.int32, bitcast=True) & SIGN_OFF


@triton.jit
def tile_masses(scores):
    """hi and lo, int32; 0 for a score of LOWEST_SCORE or less."""
    scores = tl.maximum(scores, LOWEST_SCORE)
    whole = tl.floor(scores + 0.5)
    rest = scores - whole
    power = rest * C5 + C4
    power = power * rest + C3
    power = power * rest + C2
    power = power * rest + C1
    power = power * rest + 1.0
    exponent = (whole.to(tl.int32) + (EXPONENT_BIAS + MASS_PART_BITS)) << MANTISSA_BITS
    scaled = power * exponent.to(tl.float32, bitcast=True)
    hi = scaled.to(tl.int32)
    lo = ((scaled - hi.to(tl.float32)) * MASS_PART).to(tl.int32)
    return hi, lo


@triton.jit
def lane_sum(lanes):
    """int64 [...], of int32 >= 0 [..., TILE]: both halves' sums fit 32 bits."""
    low, high = tl.sum(lanes & HALF_MASK, -1), tl.sum(lanes >> HALF_BITS, -1)
    return (tl.cast(high, tl.int64) << HALF_BITS) + tl.cast(low, tl.int64)


@triton.jit
def joined(hi, lo):
    """int64, of hi and lo."""
    return tl.cast(hi, tl.int64) * MASS_PART + tl.cast(lo, tl.int64)


@triton.jit
def share(total, upper, lower):
    """total < 2**60 times (upper * 2**30 + lower) / 2**60, rounded down."""
    high, low = total >> PART_BITS, total & PART_MASK
    upper, lower = tl.cast(upper, tl.int64), tl.cast(lower, tl.int64)
    return high * upper + ((low * upper + high * lower) >> PART_BITS)
