# SPDX-License-Identifier: Apache-2.0
"""From what a query saw in each part of its context to what it saw in all of it.

A single part is divided as it would have been without parts: the width of the tables changes no bits. Does not know the
cache.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl

from kernels.triton.attention_kernels import LEAST


@triton.jit(do_not_specialize=["num_items", "num_splits"])
def combine(
    part_values, part_sums, offsets, context_lens, places, out, num_items, num_splits,
    WINDOW: tl.constexpr, NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, D: tl.constexpr, SPLIT: tl.constexpr,
    HAS_PLACES: tl.constexpr, TILE_ROWS: tl.constexpr, TILE_D: tl.constexpr,
):  # fmt: skip
    """An item is the one query of a row, with the query heads of one key head."""
    group: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    for item in range(tl.program_id(0), num_items * NUM_KV_HEADS, tl.num_programs(0)):
        tile = item // NUM_KV_HEADS
        row = tl.load(places + 2 * tile) if HAS_PLACES else tile
        row_start = tl.load(offsets + row)
        num_queries = tl.load(offsets + row + 1) - row_start
        context_len = tl.load(context_lens + row)
        first = tl.maximum(context_len - WINDOW, 0) if WINDOW > 0 else 0
        num_parts = (context_len + SPLIT - 1) // SPLIT - first // SPLIT
        index = tl.arange(0, TILE_ROWS)
        place = tl.arange(0, TILE_D)
        is_query = index < tl.minimum(num_queries, 1) * group
        mask = is_query[:, None] & (place < D)[None, :]
        vector = (index * D)[:, None] + place[None, :]
        highest = tl.full([TILE_ROWS], LEAST, tl.float32)
        total = tl.zeros([TILE_ROWS], tl.float32)
        value = tl.zeros([TILE_ROWS, TILE_D], tl.float32)
        for split in range(num_parts):
            part = (tl.cast(item, tl.int64) * num_splits + split) * group
            part_total = tl.load(part_sums + part * 2 + index * 2, mask=is_query, other=1.0)
            part_highest = tl.load(part_sums + part * 2 + index * 2 + 1, mask=is_query, other=0.0)
            part_value = tl.load(part_values + part * D + vector, mask=mask, other=0.0)
            new_highest = tl.maximum(highest, part_highest)
            fade, weight = tl.exp2(highest - new_highest), tl.exp2(part_highest - new_highest)
            total = total * fade + part_total * weight
            value = value * fade[:, None] + part_value * weight[:, None]
            highest = new_highest
        base = tl.cast(row_start, tl.int64) * (NUM_HEADS * D) + tl.cast(item % NUM_KV_HEADS, tl.int64) * (group * D)
        tl.store(out + base + vector, value / tl.maximum(total, 1.0)[:, None], mask=mask)
