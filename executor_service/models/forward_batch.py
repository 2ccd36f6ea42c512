# SPDX-License-Identifier: Apache-2.0
"""One step on the device: what the model reads beside its weights.

Holds tensors and the host lists that operations want. Does not know sequences or how the arrays were packed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# One cache per layer: K and V as stored, each [num_blocks, K, S, D], with as many blocks as its group's pool.
KvCache = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, eq=False)
class ForwardBatch:
    """B rows packed flat to N tokens. Row i computes tokens [offsets[i], offsets[i + 1]); prefill chunks and decode
    rows look alike. Its context is every token of the sequence up to and including those: context_lens[i].

    token_ids: int32 [N]. positions: int64 [N], in the sequence. slots: int64 [G, N], block * S + place in the block, of
    each of the G cache groups (1 for most models). block_tables: int64 [G, B, M], padded with 0; entries that a group's
    window has left behind hold any valid block. logit_rows: int64 [R + Q], which of the N tokens need logits: the last
    ones of the R rows that sample, then those whose followers in the prompt are scored. offsets [B + 1] and
    context_lens [B] stay on the host: attention is laid out by them.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    block_tables: torch.Tensor
    logit_rows: torch.Tensor
    offsets: tuple[int, ...]
    context_lens: tuple[int, ...]
