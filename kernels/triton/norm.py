# SPDX-License-Identifier: Apache-2.0
"""Embedding, addition and RMS norm, whichever of them follow each other, in one kernel.

A row is read twice, in tiles; where one tile holds it the compiler reads it once. Does not know layers.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: N803

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.cores import Cores

# Of a row: x, what is added, the weight, and the result.
_LIVE_TILES = 4
_MAX_NARROW_TILE = 2048


@triton.jit
def row_tile(
    x, added, source, row, start, scale,
    WIDTH: tl.constexpr, TILE: tl.constexpr, IS_GATHERED: tl.constexpr, HAS_ADDED: tl.constexpr,
):  # fmt: skip
    """float32 [TILE], of values as x's type has them."""
    place = start + tl.arange(0, TILE)
    is_inside = place < WIDTH
    values = tl.load(x + tl.cast(source, tl.int64) * WIDTH + place, mask=is_inside, other=0.0)
    wide = values.to(tl.float32)
    if IS_GATHERED:
        wide = (wide * scale).to(values.dtype).to(tl.float32)
    if HAS_ADDED:
        more = tl.load(added + tl.cast(row, tl.int64) * WIDTH + place, mask=is_inside, other=0.0)
        wide = (wide + more.to(tl.float32)).to(values.dtype).to(tl.float32)
    return wide


@triton.jit(do_not_specialize=["num_rows"])
def norm_rows(
    x, added, token_ids, weight, sums, out, num_rows, scale, eps,
    WIDTH: tl.constexpr, TILE: tl.constexpr,
    IS_GATHERED: tl.constexpr, HAS_ADDED: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    """An item is a row. sums: what is normed, written where it is not x itself."""
    for row in range(tl.program_id(0), num_rows, tl.num_programs(0)):
        source = tl.load(token_ids + row) if IS_GATHERED else row
        inverse = 1.0
        if HAS_NORM:
            squares = 0.0
            for start in tl.static_range(0, WIDTH, TILE):
                wide = row_tile(x, added, source, row, start, scale, WIDTH, TILE, IS_GATHERED, HAS_ADDED)
                squares += tl.sum(wide * wide)
            inverse = tl.rsqrt(squares / WIDTH + eps)
        for start in tl.static_range(0, WIDTH, TILE):
            wide = row_tile(x, added, source, row, start, scale, WIDTH, TILE, IS_GATHERED, HAS_ADDED)
            place = start + tl.arange(0, TILE)
            target = tl.cast(row, tl.int64) * WIDTH
            if IS_GATHERED or HAS_ADDED:
                tl.store(sums + target + place, wide, mask=place < WIDTH)
            if HAS_NORM:
                factor = tl.load(weight + place, mask=place < WIDTH, other=0.0)
                normed = (wide * inverse).to(factor.dtype).to(tl.float32)
                result = (normed * factor.to(tl.float32)).to(factor.dtype)
                tl.store(out + target + place, result, mask=place < WIDTH)


def embed(table: Tensor, token_ids: Tensor, scale: float, cores: Cores) -> Tensor:
    x = table.new_empty(len(token_ids), table.shape[1])  # [N, C]
    _launch(cores, table, None, token_ids, None, x, x, scale, 0.0)
    return x


def embed_rms_norm(
    table: Tensor, token_ids: Tensor, scale: float, weight: Tensor, eps: float, cores: Cores
) -> tuple[Tensor, Tensor]:
    x = table.new_empty(len(token_ids), table.shape[1])  # [N, C]
    out = torch.empty_like(x)
    _launch(cores, table, None, token_ids, weight, x, out, scale, eps)
    return x, out


def rms_norm(x: Tensor, weight: Tensor, eps: float, cores: Cores) -> Tensor:
    x = x.contiguous()
    out = torch.empty_like(x)
    _launch(cores, x, None, None, weight, x, out, 1.0, eps)
    return out


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float, cores: Cores) -> tuple[Tensor, Tensor]:
    x = x.contiguous()
    total, out = torch.empty_like(x), torch.empty_like(x)
    _launch(cores, x, residual.contiguous(), None, weight, total, out, 1.0, eps)
    return total, out


def _launch(
    cores: Cores,
    x: Tensor,
    added: Tensor | None,
    token_ids: Tensor | None,
    weight: Tensor | None,
    sums: Tensor,
    out: Tensor,
    scale: float,
    eps: float,
) -> None:
    width = x.shape[-1]
    tile = cores.tile(width, _LIVE_TILES)
    num_rows = out.numel() // width
    # Tensors that a kernel was told not to look at are stood in for by one that is there.
    norm_rows[cores.grid(num_rows)](
        x,
        x if added is None else added,
        x if token_ids is None else token_ids,
        x if weight is None else weight,
        sums,
        out,
        num_rows,
        scale,
        eps,
        WIDTH=width,
        TILE=tile,
        IS_GATHERED=token_ids is not None,
        HAS_ADDED=added is not None,
        HAS_NORM=weight is not None,
        num_warps=8 if tile > _MAX_NARROW_TILE else 4,
        enable_fp_fusion=True,
    )
