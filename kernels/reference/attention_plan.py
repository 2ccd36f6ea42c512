# SPDX-License-Identifier: Apache-2.0
"""Where a step's tokens are stored and which parts of the cache its queries read: planned once, used by every layer.

Contexts are read in tiles of fixed length. Knows places, not values.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

CONTEXT = 256


@dataclass(frozen=True, eq=False)
class Tile:
    """CONTEXT positions, of the first rows of a group: those whose context reaches them. R is T * H / K."""

    pieces: Tensor  # int64 [B', K, P], rows of the cache seen as pieces
    is_hidden: Tensor | None  # bool [B', 1, R, CONTEXT], where a query sees less than all
    kept_bits: Tensor | None  # int32 [B', 1, CONTEXT, 1], all ones or 0, where a context ends in the tile


@dataclass(frozen=True, eq=False)
class Group:
    """Rows of equally many queries T, those with the most tiles first."""

    tokens: Tensor | None  # int64 [B, T]; None for all of them in their order
    num_queries: int
    tiles: list[Tile]


@dataclass(frozen=True, eq=False)
class AttentionPlan:
    groups: list[Group]
    piece_tokens: int
    # int64 [N * K]: where each token's keys and values go, in the cache seen as vectors
    vectors: Tensor


def attention_plan(
    slots: Tensor,
    block_tables: Tensor,
    offsets: tuple[int, ...],
    context_lens: tuple[int, ...],
    block_tokens: int,
    num_heads: int,
    num_kv_heads: int,
) -> AttentionPlan:
    # Tokens that are read at once: as many as divide both a block and a tile.
    piece_tokens = math.gcd(block_tokens, CONTEXT)
    pieces = block_pieces(block_tables, num_kv_heads, block_tokens // piece_tokens)
    groups = []
    for num_queries, rows in rows_by_num_queries(offsets).items():
        # Rows that still have context left are then always the first ones.
        rows.sort(key=lambda row: -num_tiles(context_lens[row]))
        starts = [offsets[row] for row in rows]
        is_all = starts == list(range(0, offsets[-1], num_queries))
        first = torch.tensor(starts, device=slots.device)[:, None]
        tokens = None if is_all else first + torch.arange(num_queries, device=slots.device)
        lens = [context_lens[row] for row in rows]
        tiles = plan_tiles(pieces[rows], lens, num_queries, num_heads // num_kv_heads, CONTEXT // piece_tokens)
        groups.append(Group(tokens, num_queries, list(tiles)))
    heads = torch.arange(num_kv_heads, device=slots.device)
    vectors = (slots // block_tokens * num_kv_heads)[:, None] + heads  # [N, K]
    vectors = vectors * block_tokens + (slots % block_tokens)[:, None]
    return AttentionPlan(groups, piece_tokens, vectors.flatten())


def block_pieces(block_tables: Tensor, num_kv_heads: int, num_pieces: int) -> Tensor:
    """int64 [B, K, M * num_pieces]: the pieces of each head's part of each block, as rows of the cache."""
    heads = torch.arange(num_kv_heads, device=block_tables.device)[:, None]
    parts = block_tables[:, None] * num_kv_heads + heads  # [B, K, M]
    return (parts[..., None] * num_pieces + torch.arange(num_pieces, device=block_tables.device)).flatten(2)


def num_tiles(context_len: int) -> int:
    return -(-context_len // CONTEXT)


def rows_by_num_queries(offsets: Sequence[int]) -> dict[int, list[int]]:
    """Rows of equally many queries are computed together; rows without any are left out."""
    rows = defaultdict(list)
    for row in range(len(offsets) - 1):
        if num_queries := offsets[row + 1] - offsets[row]:
            rows[num_queries].append(row)
    return rows


def plan_tiles(
    pieces: Tensor, context_lens: list[int], num_queries: int, heads_per_key: int, tile_pieces: int
) -> Iterator[Tile]:
    """pieces [B, K, P] and context_lens, most tiles first."""
    lens = torch.tensor(context_lens, device=pieces.device)[:, None]  # [B, 1]
    seen = lens - num_queries + 1 + torch.arange(num_queries, device=pieces.device)  # [B, T], positions a query sees
    seen = seen.repeat_interleave(heads_per_key, 1)[:, None, :, None]
    # The last tile may reach past the table: any piece will do there, it is hidden.
    pieces = pad(pieces, (0, -pieces.shape[2] % tile_pieces))
    for start in range(0, context_lens[0], CONTEXT):
        num_active = sum(length > start for length in context_lens)
        shortest, end = min(context_lens[:num_active]), start + CONTEXT
        positions = torch.arange(start, end, device=pieces.device)
        kept = (positions < lens[:num_active]).int().neg()[:, None, :, None]
        first = start // CONTEXT * tile_pieces
        yield Tile(
            pieces=pieces[:num_active, :, first : first + tile_pieces],
            is_hidden=positions >= seen[:num_active] if shortest - num_queries + 1 < end else None,
            kept_bits=kept if shortest < end else None,
        )
