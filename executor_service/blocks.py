# SPDX-License-Identifier: Apache-2.0
"""Which blocks of the KV cache are free.

Knows numbers only: not what a block holds, nor who holds it.
"""

from __future__ import annotations


class BlockPool:
    """num_blocks blocks of block_tokens tokens each. Ask, then take: allocate answers None where too few are free."""

    def __init__(self, num_blocks: int, block_tokens: int) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return self.num_blocks - len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_tokens)

    def allocate(self, num_blocks: int) -> list[int] | None:
        if num_blocks > len(self._free):
            return None
        split = len(self._free) - num_blocks
        taken = self._free[split:]
        del self._free[split:]
        return taken

    def release(self, block_ids: list[int]) -> None:
        self._free.extend(block_ids)
        assert len(self._free) <= self.num_blocks, "a block was released twice"
