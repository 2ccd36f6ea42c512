# SPDX-License-Identifier: Apache-2.0
"""The rows of one step as attention sees them: which queries each has, and where its keys and values lie.

Host lists are for operations that are laid out by the host, tensors for those that read lengths on the device. Does not
know sequences.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class PagedRows:
    """B rows with N queries in one cache group, whose blocks have S tokens.

    Token n is stored at slots[n] (int32 [N]), block * S + place in the block. Queries [offsets[i], offsets[i + 1]) are
    the last of the context_lens[i] tokens of row i, whose keys and values lie in the blocks block_tables[i] (int32
    [B, M]). Blocks of which no query of the row sees a token have any valid number, and what they hold changes nothing.
    offsets_on_device int32 [B + 1] and context_lens_on_device int32 [B] hold what the host's do.
    """

    slots: Tensor
    block_tables: Tensor
    offsets: tuple[int, ...]
    context_lens: tuple[int, ...]
    offsets_on_device: Tensor
    context_lens_on_device: Tensor

    @property
    def is_decode(self) -> bool:
        """Every row has one query."""
        return self.offsets == tuple(range(len(self.context_lens) + 1))
