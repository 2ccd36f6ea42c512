# SPDX-License-Identifier: Apache-2.0
"""The work of attention in a step: rows of one query by parts of their context, other rows by tiles of queries.

Made once for all layers of one window. Of a step of single queries nothing is made by the host: lengths are read on the
device, where a replayed graph finds new ones. Knows places, not values.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from kernels.paged_rows import PagedRows

# Tokens of context in a part: fixed, so that a row is summed alike whatever its company.
SPLIT = 1024


@dataclass(frozen=True, eq=False)
class Items:
    """T tiles of at most num_queries queries. places: int32 [T, 2], each one's row and its first query in the row; None
    where each row has one tile, in order. num_parts: of SPLIT tokens, that a context has at most; None where it is not
    parted."""

    num_items: int
    num_queries: int
    places: Tensor | None
    num_parts: int | None


@dataclass(frozen=True, eq=False)
class AttentionPlan:
    rows: PagedRows
    window: int | None
    items: tuple[Items, ...]


def attention_plan(rows: PagedRows, block_tokens: int, window: int | None, tile_queries: int) -> AttentionPlan:
    lens = [end - start for start, end in pairwise(rows.offsets)]
    num_parts = parts_at_most(rows.block_tables.shape[1] * block_tokens, window)
    if max(lens, default=0) <= 1:
        return AttentionPlan(rows, window, (Items(len(lens), 1, None, num_parts),))
    singles = [(row, 0) for row, num_queries in enumerate(lens) if num_queries == 1]
    tiles = [
        (row, first)
        for row, num_queries in enumerate(lens)
        if num_queries > 1
        for first in range(0, num_queries, tile_queries)
    ]
    places = upload([*singles, *tiles], rows.slots.device)
    items = Items(len(tiles), tile_queries, places[len(singles) :], None)
    if not singles:
        return AttentionPlan(rows, window, (items,))
    return AttentionPlan(rows, window, (items, Items(len(singles), 1, places[: len(singles)], num_parts)))


def parts_at_most(max_context: int, window: int | None) -> int:
    """A window may begin at the last token of a part."""
    num_parts = -(-max_context // SPLIT)
    return num_parts if window is None else min(num_parts, -(-(window - 1) // SPLIT) + 1)


def upload(places: list[tuple[int, int]], device: torch.device) -> Tensor:
    """int32 [T, 2], without waiting for the device."""
    on_host = torch.tensor(places, dtype=torch.int32, pin_memory=device.type != "cpu")
    return on_host.to(device, non_blocking=True)
