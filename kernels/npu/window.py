# SPDX-License-Identifier: Apache-2.0
"""Tables without the blocks that a window has left behind, and which tokens of the others it hides.

Such blocks may hold what another sequence wrote: not reading them is what keeps it out. The device computes tables, the
host lengths, from the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.paged_rows import PagedRows


@dataclass(frozen=True, eq=False)
class Seen:
    """Rows as they are from the first block that any of their queries sees."""

    block_tables: Tensor  # int32 [B, M]
    context_lens: list[int]
    context_lens_on_device: Tensor  # int32 [B]


def seen_blocks(rows: PagedRows, block_tokens: int, window: int | None) -> Seen:
    if window is None:
        return Seen(rows.block_tables, list(rows.context_lens), rows.context_lens_on_device)
    num_queries = [end - start for start, end in zip(rows.offsets, rows.offsets[1:], strict=False)]
    lens = [
        length - max(0, length - count - window + 1) // block_tokens * block_tokens
        for length, count in zip(rows.context_lens, num_queries, strict=True)
    ]
    first_seen = (rows.context_lens_on_device - rows.offsets_on_device.diff() - window + 1).clamp_(min=0)
    first_blocks = first_seen.div_(block_tokens, rounding_mode="floor")  # [B]
    places = first_blocks[:, None] + torch.arange(-(-max(lens) // block_tokens), device=first_blocks.device)
    places.clamp_(max=rows.block_tables.shape[1] - 1)  # [B, M]; past a row's end any block will do
    tables = rows.block_tables.gather(1, places.long())
    return Seen(tables, lens, rows.context_lens_on_device - first_blocks * block_tokens)


def hidden_of_decode(seen: Seen, block_tokens: int, window: int) -> Tensor:
    """bool [B, M * S] of rows of one query: which places of the seen blocks it does not see."""
    ends = seen.context_lens_on_device[:, None]
    places = torch.arange(seen.block_tables.shape[1] * block_tokens, device=ends.device)
    return (places >= ends) | (places < ends - window)
