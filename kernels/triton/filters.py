# SPDX-License-Identifier: Apache-2.0
"""Which ids top-k, top-p and min-p keep, inside a kernel: a row's vocabulary is passed over a few times, not sorted.

A score is compared as its magnitude's 31 bits, which grow as it falls. Ids that tie with the last one kept are kept.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton.masses import joined, lane_sum, magnitude, share, tile_masses, tile_scores

MAGNITUDE_BITS = tl.constexpr(31)
ALL_MAGNITUDES = tl.constexpr(0x7FFFFFFF)
ALL_PARTS = tl.constexpr(1 << 30)


@triton.jit
def kept_masses(scores, last):
    """hi and lo, 0 for ids whose magnitude is above last."""
    hi, lo = tile_masses(scores)
    is_kept = magnitude(scores) <= last
    return tl.where(is_kept, hi, 0), tl.where(is_kept, lo, 0)


@triton.jit
def total_mass(logits, vocabulary_size, highest, scale, last, TILE: tl.constexpr):
    """int64, of ids whose magnitude is at most last."""
    hi_lanes = tl.full([TILE], 0, tl.int32)
    lo_lanes = tl.full([TILE], 0, tl.int32)
    for start in range(0, vocabulary_size, TILE):
        hi, lo = kept_masses(tile_scores(logits, start, vocabulary_size, highest, scale, TILE), last)
        hi_lanes += hi
        lo_lanes += lo
    return joined(lane_sum(hi_lanes), lane_sum(lo_lanes))


@triton.jit
def first_reaching(
    logits, vocabulary_size, highest, scale, last, reach,
    BY_MASS: tl.constexpr, TILE: tl.constexpr, WAY_BITS: tl.constexpr,
):  # fmt: skip
    """int32: the least magnitude for which ids of such and lower ones, up to last, weigh reach together: their masses,
    or 1 each. WAY_BITS of it are found in each pass over the vocabulary."""
    num_ways: tl.constexpr = 1 << WAY_BITS
    num_passes: tl.constexpr = (MAGNITUDE_BITS + WAY_BITS - 1) // WAY_BITS
    found = 0
    for turn in range(num_passes):
        shift = (num_passes - 1 - turn) * WAY_BITS
        # Magnitudes' upper bits: those found so far, then each of what may follow.
        ways = (found << WAY_BITS) + tl.arange(0, num_ways)
        hi_lanes = tl.full([num_ways, TILE], 0, tl.int32)
        lo_lanes = tl.full([num_ways, TILE], 0, tl.int32)
        for start in range(0, vocabulary_size, TILE):
            scores = tile_scores(logits, start, vocabulary_size, highest, scale, TILE)
            is_in = ((magnitude(scores) >> shift)[None, :] <= ways[:, None]).to(tl.int32)
            if BY_MASS:
                hi, lo = kept_masses(scores, last)
                hi_lanes += is_in * hi[None, :]
                lo_lanes += is_in * lo[None, :]
            else:
                is_id = (start + tl.arange(0, TILE) < vocabulary_size).to(tl.int32)
                lo_lanes += is_in * is_id[None, :]
        weight = joined(lane_sum(hi_lanes), lane_sum(lo_lanes))  # [num_ways]
        found = (found << WAY_BITS) + tl.sum((weight < reach).to(tl.int32), 0)
    return found


@triton.jit
def last_kept(
    logits, vocabulary_size, highest, scale, top_k, top_p, min_score, TILE: tl.constexpr, WAY_BITS: tl.constexpr
):  # fmt: skip
    """int32: the highest magnitude that is kept by top-k, then top-p, and min-p."""
    last = ALL_MAGNITUDES
    if top_k < vocabulary_size:
        num_kept = tl.cast(top_k, tl.int64)
        last = first_reaching(logits, vocabulary_size, highest, scale, last, num_kept, False, TILE, WAY_BITS)
    if top_p < ALL_PARTS:
        reach = share(total_mass(logits, vocabulary_size, highest, scale, last, TILE), top_p, 0)
        last = first_reaching(logits, vocabulary_size, highest, scale, last, reach, True, TILE, WAY_BITS)
    return tl.minimum(last, magnitude(min_score))
