# SPDX-License-Identifier: Apache-2.0
"""One step on the device: what the model reads beside its weights.

Holds tensors and the host lists that operations want. Does not know sequences or how the arrays were packed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# One cache per layer: K and V as stored, each [num_blocks, K, S, D].
KvCache = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, eq=False)
class ForwardBatch:
    """B rows packed flat to N tokens. Row i computes tokens [offsets[i], offsets[i + 1]); prefill chunks and decode
    rows look alike. Its context is every token of the sequence up to and including those: context_lens[i].

    token_ids: int32 [N]. positions: int64 [N], in the sequence. slots: int64 [N], block * S + place in the block.
    block_tables: int64 [G, B, M], padded with 0; G cache groups (1 for most models). logit_rows: int64 [R], which of
    the N tokens need logits. offsets [B + 1] and context_lens [B] stay on the host: attention is laid out by them.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    block_tables: torch.Tensor
    logit_rows: torch.Tensor
    offsets: tuple[int, ...]
    context_lens: tuple[int, ...]
