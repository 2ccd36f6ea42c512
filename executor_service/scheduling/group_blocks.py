# SPDX-License-Identifier: Apache-2.0
"""One cache group: its pool, and which blocks of a row its queries still see.

Does not know sequences, or the other groups.
"""

from __future__ import annotations

from collections.abc import Sequence as Many

from executor_service.scheduling.blocks import BlockPool
from executor_service.scheduling.cache_group import CacheGroup
from executor_service.scheduling.prefix_index import Content
from executor_service.scheduling.sequence import HeldBlocks


class GroupBlocks:
    """S tokens a block. A query at position p sees positions (p - window, p]; without a window all up to p."""

    def __init__(self, group: CacheGroup, num_blocks: int, block_tokens: int) -> None:
        self.window = group.window
        self.block_tokens = block_tokens
        self.pool = BlockPool(num_blocks)

    # ---- how much a row needs

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_tokens)

    def num_wanted(self, num_tokens: int, chunk_tokens: int) -> int:
        """Blocks that a row of so many tokens holds at once, computed in chunks."""
        if self.window is None:
            return self.blocks_for(num_tokens)
        spanned = self.blocks_for(self.window - 2 + chunk_tokens) + 1
        return min(self.blocks_for(num_tokens), spanned, self.pool.num_blocks)

    def first_seen(self, position: int) -> int:
        """The first block that queries from this position on see."""
        return 0 if self.window is None else max(0, position - self.window + 1) // self.block_tokens

    # ---- cached prefixes

    def longest_hit(self, contents: Many[Content], num_blocks: int) -> int:
        """The most blocks, num_blocks at most, of which everything that later queries see is cached."""
        if self.window is None:
            return next((i for i in range(num_blocks) if self.pool.index.find(contents[i]) is None), num_blocks)
        end = i = num_blocks
        while i > self.first_seen(end * self.block_tokens):
            i -= 1
            if self.pool.index.find(contents[i]) is None:
                end = i
        return end

    def hit(self, contents: Many[Content], num_blocks: int) -> HeldBlocks:
        """The cached blocks of a hit; nobody holds them for the row yet."""
        first = self.first_seen(num_blocks * self.block_tokens)
        found = [self.pool.index.find(content) for content in contents[first:num_blocks]]
        return HeldBlocks([0] * first + [block_id for block_id in found if block_id is not None], first)

    # ---- a row's blocks

    def leave_behind(self, held: HeldBlocks, position: int) -> None:
        """Gives up what no query from this position on sees."""
        first = self.first_seen(position)
        if first > held.num_left:
            self.pool.release(held.block_ids[held.num_left : first])
            held.block_ids[held.num_left : first] = [0] * (first - held.num_left)
            held.num_left = first

    def release(self, held: HeldBlocks) -> None:
        # The last go first: without the first ones nobody finds the others.
        self.pool.release(reversed(held.own))
