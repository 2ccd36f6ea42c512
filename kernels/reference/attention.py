# SPDX-License-Identifier: Apache-2.0
"""Causal attention over a paged cache, one routine for every number of queries.

Contexts are read in tiles of fixed length, and products have a fixed number of rows: a query's bits depend on its own
context alone. Computes in float32 whatever the cache holds.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from kernels.reference.softmax import RunningSoftmax, product

CONTEXT = 256


def attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_tables: Tensor,
    offsets: tuple[int, ...],
    context_lens: tuple[int, ...],
    scale: float,
) -> Tensor:
    out = torch.empty_like(q)
    for num_queries, rows in rows_by_num_queries(offsets).items():
        # The longest context first: the rows that still have context left are then always the first ones.
        rows.sort(key=lambda row: -context_lens[row])
        lens = [context_lens[row] for row in rows]
        starts = torch.tensor([offsets[row] for row in rows], device=q.device)
        tokens = starts[:, None] + torch.arange(num_queries, device=q.device)  # [B, T]
        pieces = context_pieces(block_tables[rows], k_cache, lens)
        out[tokens] = attend(q[tokens].float() * scale, k_cache, v_cache, pieces, lens).to(q.dtype)
    return out


def rows_by_num_queries(offsets: Sequence[int]) -> dict[int, list[int]]:
    """Rows of equally many queries are computed together; rows without any are left out."""
    rows = defaultdict(list)
    for row in range(len(offsets) - 1):
        if num_queries := offsets[row + 1] - offsets[row]:
            rows[num_queries].append(row)
    return rows


def piece_tokens(cache: Tensor) -> int:
    """Tokens that are read at once: as many as divide both a block and a tile."""
    return math.gcd(cache.shape[2], CONTEXT)


def context_pieces(block_tables: Tensor, cache: Tensor, context_lens: Sequence[int]) -> Tensor:
    """Where the pieces of each row's context lie, [B, K, whole tiles of pieces]; the last one repeated at the end."""
    num_kv_heads, block_tokens, size = cache.shape[1], cache.shape[2], piece_tokens(cache)
    device = block_tables.device
    num_positions = -(-context_lens[0] // CONTEXT) * CONTEXT
    last = torch.tensor(context_lens, device=device)[:, None] - 1
    positions = torch.arange(0, num_positions, size, device=device).minimum(last)
    blocks = block_tables.gather(1, positions // block_tokens)[:, None]  # [B, 1, P]
    heads = blocks * num_kv_heads + torch.arange(num_kv_heads, device=device)[:, None]  # [B, K, P]
    return heads * (block_tokens // size) + (positions % block_tokens // size)[:, None]


def attend(q: Tensor, k_cache: Tensor, v_cache: Tensor, pieces: Tensor, context_lens: Sequence[int]) -> Tensor:
    """q [B, T, H, D], scaled -> [B, T, H, D] float32; pieces and context_lens are longest first."""
    num_queries, num_kv_heads = q.shape[1], k_cache.shape[1]
    grouped = q.view(*q.shape[:2], num_kv_heads, -1, q.shape[3]).transpose(1, 2)  # [B, K, T, H / K, D]
    queries = grouped.flatten(2, 3)  # [B, K, T * H / K, D]
    lens = torch.tensor(context_lens, device=q.device)[:, None]
    seen = lens - num_queries + 1 + torch.arange(num_queries, device=q.device)  # [B, T], positions a query sees
    seen = seen.repeat_interleave(queries.shape[2] // num_queries, 1)[:, None, :, None]
    tile_pieces = CONTEXT // piece_tokens(k_cache)
    softmax = RunningSoftmax(queries)
    for start in range(0, context_lens[0], CONTEXT):
        num_active = sum(length > start for length in context_lens)
        tile = pieces[:num_active, :, start // CONTEXT * tile_pieces :][:, :, :tile_pieces]
        positions = torch.arange(start, start + CONTEXT, device=q.device)
        scores = product(queries[:num_active], read(k_cache, tile).mT)  # [B, K, R, CONTEXT]
        scores.masked_fill_(positions >= seen[:num_active], -torch.inf)
        values = read(v_cache, tile)
        if context_lens[num_active - 1] < start + CONTEXT:
            clear(values, positions < lens[:num_active])
        softmax.add(scores, values)
    return softmax.result().view(grouped.shape).transpose(1, 2).reshape(q.shape)


def read(cache: Tensor, pieces: Tensor) -> Tensor:
    """pieces [B, K, P] of the cache -> [B, K, tokens, D] float32."""
    size, head_dim = piece_tokens(cache), cache.shape[3]
    tokens = cache.view(-1, size * head_dim).index_select(0, pieces.flatten())
    return tokens.view(*pieces.shape[:2], -1, head_dim).float()


def clear(values: Tensor, is_kept: Tensor) -> None:
    """Zero where not is_kept [B, C]: a weight of 0 would let through what an earlier sequence left there if it is not
    finite. By bits, which is the fast way."""
    values.view(torch.int32).bitwise_and_(is_kept.int().neg_()[:, None, :, None])
