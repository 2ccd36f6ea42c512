# SPDX-License-Identifier: Apache-2.0
"""How attention's kernels are laid out for a model's heads, and their launches.

Rows of one query are split into parts of fixed length, as many as fit a table, so that few rows fill a device; rows of
more have tiles enough. Does not know what a layer is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.triton.attention_kernels import attend
from kernels.triton.attention_parts import combine
from kernels.triton.attention_plan import SPLIT, AttentionPlan, Items
from kernels.triton.cores import Cores, power_of_two

# The least that a matrix unit takes.
_MIN_TILE = 16
_MAX_ROWS = 128
_MAX_TOKENS = 64
# Matrix units have no exact product of float32; without them a larger tile does not stay in registers.
_MAX_WIDE_ROWS = 32
# Of each row: queries and the sum; of each token: keys and values.
_LIVE_TILES = 4


@dataclass(frozen=True)
class Layout:
    """tile_rows: queries times the query heads of a key head, for rows of more than one query."""

    group: int
    tile_d: int
    tile_rows: int
    tile_tokens: int

    @property
    def single_rows(self) -> int:
        """Of a tile with one query."""
        return max(_MIN_TILE, power_of_two(self.group))

    @property
    def tile_queries(self) -> int:
        return self.tile_rows // self.group


def layout_for(num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, cores: Cores) -> Layout:
    group, tile_d = num_heads // num_kv_heads, max(_MIN_TILE, power_of_two(head_dim))
    max_rows = _MAX_WIDE_ROWS if dtype is torch.float32 else _MAX_ROWS
    tile = max(_MIN_TILE, cores.tile(max_rows, _LIVE_TILES * tile_d))
    return Layout(group, tile_d, max(tile, power_of_two(group)), min(tile, _MAX_TOKENS))


def attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    plan: AttentionPlan,
    scale: float,
    cap: float | None,
    layout: Layout,
    cores: Cores,
) -> Tensor:
    q = q.contiguous()
    out = torch.empty_like(q)  # [N, H, D]
    for items in plan.items:
        _attend(q, k_cache, v_cache, plan, items, scale, cap, layout, cores, out)
    return out


def _attend(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    plan: AttentionPlan,
    items: Items,
    scale: float,
    cap: float | None,
    layout: Layout,
    cores: Cores,
    out: Tensor,
) -> None:
    block_tokens, num_kv_heads, head_dim = k_cache.shape[1:]
    num_parts, rows = items.num_parts or 1, plan.rows
    is_part = num_parts > 1
    places = rows.offsets_on_device if items.places is None else items.places  # any, where it is not looked at
    shape = (items.num_items, num_kv_heads, num_parts, layout.group) if is_part else (0,)
    values = torch.empty(*shape, head_dim, dtype=torch.float32, device=q.device)
    sums = torch.empty(*shape, 2, dtype=torch.float32, device=q.device)
    constants = {
        "WINDOW": plan.window or 0,
        "NUM_HEADS": q.shape[1],
        "NUM_KV_HEADS": num_kv_heads,
        "D": head_dim,
        "SPLIT": 0 if items.num_parts is None else SPLIT,
        "HAS_PLACES": items.places is not None,
        "TILE_ROWS": layout.tile_rows if items.num_parts is None else layout.single_rows,
        "TILE_D": layout.tile_d,
    }
    num_tiles = items.num_items * num_kv_heads
    lens = (rows.offsets_on_device, rows.context_lens_on_device)
    attend[cores.grid(num_tiles * num_parts)](
        q,
        k_cache,
        v_cache,
        rows.block_tables.contiguous(),
        *lens,
        places,
        out,
        values,
        sums,
        items.num_items,
        len(rows.context_lens),
        num_parts,
        rows.block_tables.shape[1],
        scale,
        cap or 0.0,
        HAS_CAP=cap is not None,
        S=block_tokens,
        NUM_QUERIES=items.num_queries,
        IS_PART=is_part,
        TILE_TOKENS=layout.tile_tokens,
        num_warps=8 if constants["TILE_ROWS"] > _MAX_TOKENS else 4,
        enable_fp_fusion=True,
        **constants,
    )
    if is_part:
        combine[cores.grid(num_tiles)](
            values, sums, *lens, places, out, items.num_items, num_parts, enable_fp_fusion=True, **constants
        )
