# SPDX-License-Identifier: Apache-2.0
"""One step on the device: what the model reads beside its weights.

Holds tensors and the host lists that operations want. Does not know sequences or how the arrays were packed.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from kernels.paged_rows import PagedRows

# K and V of each layer, as the backend lays them out, with as many blocks as the layer's group has.
KvCache = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class ForwardBatch:
    """B rows packed flat to N tokens. Row i computes tokens [offsets[i], offsets[i + 1]); prefill chunks and decode
    rows look alike. Its context is every token of the sequence up to and including those: context_lens[i].

    token_ids: int32 [N]. positions: int32 [N], in the sequence. logit_rows: int32 [R + Q], which of the N tokens need
    logits: the last ones of the R rows that sample, then those whose followers in the prompt are scored. groups: where
    the rows lie in each of the cache groups (1 for most models).
    """

    token_ids: Tensor
    positions: Tensor
    logit_rows: Tensor
    groups: tuple[PagedRows, ...]
    block_tokens: int

    @property
    def offsets(self) -> tuple[int, ...]:
        return self.groups[0].offsets

    @property
    def context_lens(self) -> tuple[int, ...]:
        return self.groups[0].context_lens
