# SPDX-License-Identifier: Apache-2.0
"""Causal attention over the paged cache [blocks, S, K, D]: a tile of a row's queries against a part of its context.

A query's result depends on its own context alone: contexts are read in tiles that begin at multiples of their length,
and a tile that a query does not see changes nothing, exactly. What no query of a tile sees is not read.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: N803

from __future__ import annotations

import os

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
# Finite, so that what is masked as a whole weighs 0, not NaN.
LEAST = tl.constexpr(-3.0e38)
IS_INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def product(a, b):
    """float32 [M, N] of [M, K] and [K, N]."""
    if IS_INTERPRETED:  # which would multiply the bits that stand for bfloat16
        a, b = a.to(tl.float32), b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def cache_tile(cache, blocks, position, is_seen, kv_head, S: tl.constexpr, NUM_KV_HEADS: tl.constexpr,
               D: tl.constexpr, TILE_D: tl.constexpr):  # fmt: skip
    """[TILE_TOKENS, TILE_D], 0 where nothing is seen."""
    # A cache may have more values than 32 bits count.
    token = tl.cast(blocks, tl.int64) * (S * NUM_KV_HEADS * D) + (position % S) * (NUM_KV_HEADS * D)
    place = tl.arange(0, TILE_D)
    mask = is_seen[:, None] & (place < D)[None, :]
    return tl.load(cache + kv_head * D + token[:, None] + place[None, :], mask=mask, other=0.0)


@triton.jit
def softmax_part(
    queries, query_position, k_cache, v_cache, table, first, begin, end, kv_head, scale, cap,
    WINDOW: tl.constexpr, HAS_CAP: tl.constexpr, S: tl.constexpr, NUM_KV_HEADS: tl.constexpr, D: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_D: tl.constexpr, TILE_TOKENS: tl.constexpr,
):  # fmt: skip
    """Of queries [TILE_ROWS, TILE_D] over positions [begin, end), from first on: the weighted sum of values, the sum of
    weights and the score that has weight 1, in base 2: so that the sum is at least 1, but for a row that sees nothing
    (one past the queries), whose quotient by 1 is as good as any."""
    highest = tl.full([TILE_ROWS], LEAST, tl.float32)
    total = tl.zeros([TILE_ROWS], tl.float32)
    value = tl.zeros([TILE_ROWS, TILE_D], tl.float32)
    for start in range(begin, end, TILE_TOKENS):
        position = start + tl.arange(0, TILE_TOKENS)
        is_seen = (position >= first) & (position < end)
        blocks = tl.load(table + position // S, mask=is_seen, other=0)
        keys = cache_tile(k_cache, blocks, position, is_seen, kv_head, S, NUM_KV_HEADS, D, TILE_D)
        scores = product(queries, tl.trans(keys)) * scale
        if HAS_CAP:
            scores = cap * (1.0 - 2.0 / (tl.exp(scores * (2.0 / cap)) + 1.0))
        sees = is_seen[None, :] & (position[None, :] <= query_position[:, None])
        if WINDOW > 0:
            sees = sees & (position[None, :] > query_position[:, None] - WINDOW)
        scores = tl.where(sees, scores * LOG2_E, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.exp2(scores - new_highest[:, None])
        fade = tl.exp2(highest - new_highest)
        total = total * fade + tl.sum(weights, 1)
        values = cache_tile(v_cache, blocks, position, is_seen, kv_head, S, NUM_KV_HEADS, D, TILE_D)
        value = value * fade[:, None]
        value += product(weights.to(values.dtype), values)
        highest = new_highest
    return value, total, highest


@triton.jit
def longest_context(context_lens, num_rows, TILE: tl.constexpr):
    longest = 0
    for start in range(0, num_rows, TILE):
        row = start + tl.arange(0, TILE)
        longest = tl.maximum(longest, tl.max(tl.load(context_lens + row, mask=row < num_rows, other=0)))
    return longest


@triton.jit
def splits_in_use(context_lens, num_rows, num_splits, SPLIT: tl.constexpr):
    """Of the longest row; without a window."""
    return tl.minimum(num_splits, (longest_context(context_lens, num_rows, 1024) + SPLIT - 1) // SPLIT)


@triton.jit(do_not_specialize=["num_items", "num_rows", "num_splits", "table_width"])
def attend(
    q, k_cache, v_cache, block_tables, offsets, context_lens, places, out, part_values, part_sums,
    num_items, num_rows, num_splits, table_width, scale, cap,
    WINDOW: tl.constexpr, HAS_CAP: tl.constexpr, S: tl.constexpr, NUM_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr, D: tl.constexpr, NUM_QUERIES: tl.constexpr, SPLIT: tl.constexpr,
    HAS_PLACES: tl.constexpr, IS_PART: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_D: tl.constexpr, TILE_TOKENS: tl.constexpr,
):  # fmt: skip
    """An item is NUM_QUERIES queries of a row, with the query heads of one key head, over SPLIT tokens of the context
    (0: over all of it). IS_PART: what is written is softmax_part()'s, as combine() takes it."""
    group: tl.constexpr = NUM_HEADS // NUM_KV_HEADS
    num_tiles = num_items * NUM_KV_HEADS
    used_splits = splits_in_use(context_lens, num_rows, num_splits, SPLIT) if IS_PART else 1
    for item in range(tl.program_id(0), num_tiles * used_splits, tl.num_programs(0)):
        split = item // num_tiles
        tile = item % num_tiles // NUM_KV_HEADS
        kv_head = item % NUM_KV_HEADS
        row = tl.load(places + 2 * tile) if HAS_PLACES else tile
        first_query = tl.load(places + 2 * tile + 1) if HAS_PLACES else 0
        row_start = tl.load(offsets + row)
        num_queries = tl.load(offsets + row + 1) - row_start
        context_len = tl.load(context_lens + row)
        # Of the tile's queries: the first one's position, and the end of what the last one sees.
        position = context_len - num_queries + first_query
        end = tl.minimum(position + NUM_QUERIES, context_len)
        first = tl.maximum(position - WINDOW + 1, 0) if WINDOW > 0 else 0
        begin = first // TILE_TOKENS * TILE_TOKENS
        if SPLIT > 0:
            split_begin = (first // SPLIT + split) * SPLIT
            begin = tl.maximum(begin, split_begin)
            end = tl.minimum(end, split_begin + SPLIT)
        if (begin < end) & (first_query < num_queries):
            index = tl.arange(0, TILE_ROWS)
            query = index // group
            place = tl.arange(0, TILE_D)
            is_query = (query < NUM_QUERIES) & (first_query + query < num_queries)
            mask = is_query[:, None] & (place < D)[None, :]
            base = tl.cast(row_start + first_query, tl.int64) * (NUM_HEADS * D) + kv_head * (group * D)
            vector = query * (NUM_HEADS * D) + index % group * D
            queries = tl.load(q + base + vector[:, None] + place[None, :], mask=mask, other=0.0)
            value, total, highest = softmax_part(
                queries, position + query, k_cache, v_cache, block_tables + tl.cast(row, tl.int64) * table_width,
                first, begin, end, kv_head, scale, cap,
                WINDOW, HAS_CAP, S, NUM_KV_HEADS, D, TILE_ROWS, TILE_D, TILE_TOKENS,
            )  # fmt: skip
            if IS_PART:
                part = (tl.cast(tile * NUM_KV_HEADS + kv_head, tl.int64) * num_splits + split) * group
                target = part_values + part * D + (index * D)[:, None] + place[None, :]
                tl.store(target, value, mask=mask)
                tl.store(part_sums + part * 2 + index * 2, total, mask=is_query)
                tl.store(part_sums + part * 2 + index * 2 + 1, highest, mask=is_query)
            else:
                tl.store(
                    out + base + vector[:, None] + place[None, :], value / tl.maximum(total, 1.0)[:, None], mask=mask
                )
