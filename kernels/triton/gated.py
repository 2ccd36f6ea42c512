# SPDX-License-Identifier: Apache-2.0
"""An MLP's activation of its gate, times what it lets through.

Does not know which model has which.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from kernels.triton.cores import Cores

_MAX_TILE = 1024


@triton.jit(do_not_specialize=["num_rows"])
def gate_rows(gate_up, out, num_rows, WIDTH: tl.constexpr, TILE: tl.constexpr, IS_GELU: tl.constexpr):
    """An item is a tile of a row."""
    num_tiles: tl.constexpr = (WIDTH + TILE - 1) // TILE
    for item in range(tl.program_id(0), num_rows * num_tiles, tl.num_programs(0)):
        row = tl.cast(item // num_tiles, tl.int64)
        place = item % num_tiles * TILE + tl.arange(0, TILE)
        is_inside = place < WIDTH
        gate = tl.load(gate_up + row * (2 * WIDTH) + place, mask=is_inside, other=0.0).to(tl.float32)
        up = tl.load(gate_up + row * (2 * WIDTH) + WIDTH + place, mask=is_inside, other=0.0)
        # x / 2 * (1 + tanh(u)) = x / (1 + exp(-2 u)), where u = sqrt(2 / pi) * (x + 0.044715 x^3).
        slope = (gate * gate * 0.044715 + 1.0) * gate * 1.5957691216057308 if IS_GELU else gate
        active = (gate / (1.0 + tl.exp(-slope))).to(up.dtype)
        tl.store(out + row * WIDTH + place, active.to(tl.float32) * up.to(tl.float32), mask=is_inside)


def gated(gate_up: Tensor, is_gelu: bool, cores: Cores) -> Tensor:
    """gate_up [N, 2 F] -> [N, F]."""
    gate_up = gate_up.contiguous()
    num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(num_rows, width)
    tile = min(_MAX_TILE, cores.tile(width, 3))
    grid = cores.grid(num_rows * -(-width // tile))
    gate_rows[grid](gate_up, out, num_rows, WIDTH=width, TILE=tile, IS_GELU=is_gelu, enable_fp_fusion=True)
    return out
