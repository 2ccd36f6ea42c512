# SPDX-License-Identifier: Apache-2.0
"""Each row's next id in one kernel: the likeliest, or what top-k, top-p and min-p keep and the row's draw points at.

A row's vocabulary is passed over in tiles as often as it takes; nothing is sorted and the host waits for nothing. Ids
equal the reference's, for they follow from integers. Does not know sequences.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.sampling_rows import NOTHING_ALLOWED, SamplingRows
from kernels.triton.cores import Cores, power_of_two
from kernels.triton.filters import kept_masses, last_kept, total_mass
from kernels.triton.masses import (
    MASS_PART,
    MASS_PART_BITS,
    joined,
    share,
    tile_scores,
)

TILE = 1024
# A lane of a tile sums to less than 2**31.
MAX_VOCABULARY = 2047 * TILE
NONE_POSSIBLE = tl.constexpr(NOTHING_ALLOWED)
NO_ID = tl.constexpr(0x7FFFFFFF)
# hi and lo of each way that the next bits may go, and what goes into them.
LIVE_TILES = 4
MAX_WAY_BITS = 8


@triton.jit
def likeliest(logits, vocabulary_size, TILE: tl.constexpr):
    """The highest logit and the first id that has it."""
    best = tl.full([TILE], float("-inf"), tl.float32)
    token_ids = tl.full([TILE], NO_ID, tl.int32)
    for start in range(0, vocabulary_size, TILE):
        place = start + tl.arange(0, TILE)
        values = tl.load(logits + place, mask=place < vocabulary_size, other=float("-inf"))
        token_ids = tl.where(values > best, place, token_ids)
        best = tl.maximum(best, values)
    highest = tl.max(best, 0)
    return highest, tl.min(tl.where(best == highest, token_ids, NO_ID), 0)


@triton.jit
def drawn(logits, vocabulary_size, highest, scale, last, upper, lower, TILE: tl.constexpr):
    """The first id at which the kept ids' masses, summed in their order, exceed the draw's share of all."""
    rest = share(total_mass(logits, vocabulary_size, highest, scale, last, TILE), upper, lower)
    start = 0
    hi, lo = kept_masses(tile_scores(logits, start, vocabulary_size, highest, scale, TILE), last)
    mass = joined(tl.sum(hi, 0), tl.sum(lo, 0))
    while (mass <= rest) & (start + TILE < vocabulary_size):  # a row that is not finite holds no law
        rest -= mass
        start += TILE
        hi, lo = kept_masses(tile_scores(logits, start, vocabulary_size, highest, scale, TILE), last)
        mass = joined(tl.sum(hi, 0), tl.sum(lo, 0))
    upto_hi, upto_lo = tl.cumsum(hi, 0), tl.cumsum(lo, 0)
    upto_hi, upto_lo = upto_hi + (upto_lo >> MASS_PART_BITS), upto_lo & (MASS_PART - 1)
    rest_hi, rest_lo = tl.cast(rest >> MASS_PART_BITS, tl.int32), tl.cast(rest & (MASS_PART - 1), tl.int32)
    exceeds = (upto_hi > rest_hi) | ((upto_hi == rest_hi) & (upto_lo > rest_lo))
    token_id = tl.min(tl.where(exceeds, start + tl.arange(0, TILE), NO_ID), 0)
    return tl.minimum(token_id, vocabulary_size - 1)


@triton.jit(do_not_specialize=["num_rows"])
def choose_rows(
    logits, scales, top_ks, top_ps, min_scores, draws, out, num_rows, vocabulary_size,
    TILE: tl.constexpr, WAY_BITS: tl.constexpr,
):  # fmt: skip
    """An item is a row."""
    for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        row_logits = logits + tl.cast(row, tl.int64) * vocabulary_size
        highest, chosen = likeliest(row_logits, vocabulary_size, TILE)
        scale = tl.load(scales + row)
        if highest == float("-inf"):
            chosen = NONE_POSSIBLE
        elif scale > 0:
            top_k, top_p, min_score = tl.load(top_ks + row), tl.load(top_ps + row), tl.load(min_scores + row)
            last = last_kept(row_logits, vocabulary_size, highest, scale, top_k, top_p, min_score, TILE, WAY_BITS)
            upper, lower = tl.load(draws + row), tl.load(draws + num_rows + row)
            chosen = drawn(row_logits, vocabulary_size, highest, scale, last, upper, lower, TILE)
        tl.store(out + row, chosen)


def choose(logits: Tensor, rows: SamplingRows, cores: Cores) -> Tensor:
    num_rows, vocabulary_size = logits.shape
    assert vocabulary_size <= MAX_VOCABULARY, f"a vocabulary of {vocabulary_size}, of at most {MAX_VOCABULARY}"
    out = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    tile = min(TILE, power_of_two(vocabulary_size))
    num_ways = cores.tile(1 << MAX_WAY_BITS, LIVE_TILES * tile)
    choose_rows[cores.grid(num_rows)](
        logits.contiguous(),
        rows.scales,
        rows.top_ks,
        rows.top_ps,
        rows.min_scores,
        rows.draws.contiguous(),
        out,
        num_rows,
        vocabulary_size,
        TILE=tile,
        WAY_BITS=num_ways.bit_length() - 1,
        num_warps=8,
        enable_fp_fusion=False,
    )
    return out
