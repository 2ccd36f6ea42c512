# SPDX-License-Identifier: Apache-2.0
"""Where a step's tokens are stored and which parts of the cache its queries read: planned once, used by every layer.

Contexts are read in tiles of fixed length; a row's first one is where its first query's window begins. Knows places,
not values.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from kernels.paged_rows import PagedRows

CONTEXT = 256


@dataclass(frozen=True, eq=False)
class Tile:
    """CONTEXT positions of each of the first rows of a group: those whose context reaches so far. R is T * H / K."""

    pieces: Tensor  # int64 [B', K, P], rows of the cache seen as pieces
    is_hidden: Tensor | None  # bool [B', 1, R, CONTEXT], where a query sees less than all
    # int32 [B', 1, CONTEXT, 1], all ones or 0, where what the row's queries see begins or ends in the tile
    kept_bits: Tensor | None


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
    rows: PagedRows, block_tokens: int, num_heads: int, num_kv_heads: int, window: int | None
) -> AttentionPlan:
    offsets, context_lens, device = rows.offsets, rows.context_lens, rows.slots.device
    # Tokens that are read at once: as many as divide both a block and a tile.
    piece_tokens = math.gcd(block_tokens, CONTEXT)
    tile_pieces = CONTEXT // piece_tokens
    pieces = block_pieces(rows.block_tables.long(), num_kv_heads, block_tokens // piece_tokens)
    groups = []
    for num_queries, alike in rows_by_num_queries(offsets).items():
        skipped = {row: first_seen(context_lens[row], num_queries, window) // CONTEXT for row in alike}  # tiles
        lens = {row: context_lens[row] - skipped[row] * CONTEXT for row in alike}
        # Rows that still have context left are then always the first ones.
        alike.sort(key=lambda row: -num_tiles(lens[row]))
        starts = [offsets[row] for row in alike]
        is_all = starts == list(range(0, offsets[-1], num_queries))
        first = torch.tensor(starts, device=device)[:, None]
        tokens = None if is_all else first + torch.arange(num_queries, device=device)
        seen = pieces_from(pieces[alike], [skipped[row] * tile_pieces for row in alike])
        heads_per_key = num_heads // num_kv_heads
        tiles = plan_tiles(seen, [lens[row] for row in alike], num_queries, heads_per_key, tile_pieces, window)
        groups.append(Group(tokens, num_queries, list(tiles)))
    return AttentionPlan(groups, piece_tokens, vectors_of(rows.slots.long(), block_tokens, num_kv_heads))


def vectors_of(slots: Tensor, block_tokens: int, num_kv_heads: int) -> Tensor:
    """int64 [N * K]."""
    heads = torch.arange(num_kv_heads, device=slots.device)
    vectors = (slots // block_tokens * num_kv_heads)[:, None] + heads  # [N, K]
    return (vectors * block_tokens + (slots % block_tokens)[:, None]).flatten()


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


def first_seen(context_len: int, num_queries: int, window: int | None) -> int:
    """The first position that any of a row's queries sees."""
    return 0 if window is None else max(0, context_len - num_queries - window + 1)


def pieces_from(pieces: Tensor, starts: list[int]) -> Tensor:
    """pieces [B, K, P], each row's from its start on; what is past the end is any piece."""
    if not any(starts):
        return pieces
    length = pieces.shape[2]
    places = torch.tensor(starts, device=pieces.device)[:, None] + torch.arange(length, device=pieces.device)
    return pieces.gather(2, places.clamp_(max=length - 1)[:, None].expand_as(pieces))


def plan_tiles(
    pieces: Tensor,
    context_lens: list[int],
    num_queries: int,
    heads_per_key: int,
    tile_pieces: int,
    window: int | None,
) -> Iterator[Tile]:
    """pieces [B, K, P] and context_lens, most tiles first; both count from a row's first tile."""
    lens = torch.tensor(context_lens, device=pieces.device)[:, None]  # [B, 1]
    ends = lens - num_queries + 1 + torch.arange(num_queries, device=pieces.device)  # [B, T]: a query sees [.., end)
    ends = ends.repeat_interleave(heads_per_key, 1)[:, None, :, None]
    firsts = [first_seen(length, num_queries, window) for length in context_lens]
    # The last tile may reach past the table: any piece will do there, it is hidden.
    pieces = pad(pieces, (0, -pieces.shape[2] % tile_pieces))
    for start in range(0, context_lens[0], CONTEXT):
        num_active = sum(length > start for length in context_lens)
        shortest, longest, end = min(context_lens[:num_active]), max(context_lens[:num_active]), start + CONTEXT
        positions = torch.arange(start, end, device=pieces.device)
        is_hidden = positions >= ends[:num_active] if shortest - num_queries + 1 < end else None
        is_kept = positions < lens[:num_active] if shortest < end else None
        if window is not None and longest - window > start:
            is_hidden = either(is_hidden, positions < ends[:num_active] - window)
        if any(first > start for first in firsts[:num_active]):
            begins = torch.tensor(firsts[:num_active], device=pieces.device)[:, None]
            is_kept = both(is_kept, positions >= begins)
        first = start // CONTEXT * tile_pieces
        yield Tile(
            pieces=pieces[:num_active, :, first : first + tile_pieces],
            is_hidden=is_hidden,
            kept_bits=None if is_kept is None else is_kept.int().neg()[:, None, :, None],
        )


def either(first: Tensor | None, second: Tensor) -> Tensor:
    return second if first is None else first | second


def both(first: Tensor | None, second: Tensor) -> Tensor:
    return second if first is None else first & second
