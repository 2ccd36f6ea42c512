# SPDX-License-Identifier: Apache-2.0
"""Which blocks of one cache group are free, how many rows hold each of the others, and whose content is still known.

Knows numbers only: not what a block holds, nor who holds it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from executor_service.scheduling.prefix_index import PrefixIndex


class BlockPool:
    """num_blocks blocks. Ask, then take: allocate answers None where too few are free.

    A block that nobody holds is free even where the index knows its content; those without content are given out
    first, then the ones released longest ago.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.index = PrefixIndex()
        self._num_holders = [0] * num_blocks
        self._plain = list(range(num_blocks - 1, -1, -1))
        # Free and with known content, released longest ago first.
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def num_free(self) -> int:
        return len(self._plain) + len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    def num_holders(self, block_id: int) -> int:
        return self._num_holders[block_id]

    def allocate(self, num_blocks: int) -> list[int] | None:
        """Blocks for one holder; whatever they held is forgotten."""
        if num_blocks > self.num_free:
            return None
        split = max(0, len(self._plain) - num_blocks)
        taken = self._plain[split:]
        del self._plain[split:]
        while len(taken) < num_blocks:
            taken.append(self._evict())
        for block_id in taken:
            self._num_holders[block_id] = 1
        return taken

    def _evict(self) -> int:
        block_id, _ = self._cached.popitem(last=False)
        self.index.forget(block_id)
        return block_id

    def share(self, block_ids: Iterable[int]) -> None:
        """One holder more, of blocks whose content is known."""
        for block_id in block_ids:
            if self._num_holders[block_id] == 0:
                del self._cached[block_id]
            self._num_holders[block_id] += 1

    def release(self, block_ids: Iterable[int]) -> None:
        """One holder less. What is released first is given out first."""
        for block_id in block_ids:
            self._num_holders[block_id] -= 1
            assert self._num_holders[block_id] >= 0, f"block {block_id} was released twice"
            if self._num_holders[block_id] == 0:
                self._set_free(block_id)

    def _set_free(self, block_id: int) -> None:
        if block_id in self.index:
            self._cached[block_id] = None
        else:
            self._plain.append(block_id)

    def check(self) -> None:
        """Every block is plain, cached or held, and only one of these; the index knows no plain one."""
        held = {block_id for block_id, number in enumerate(self._num_holders) if number}
        plain, cached = set(self._plain), set(self._cached)
        assert len(self._plain) == len(plain), "a block is free twice"
        assert sorted([*held, *plain, *cached]) == list(range(self.num_blocks)), "a block is lost, or free and held"
        assert all(block_id in self.index for block_id in cached), "a cached block has no content"
        assert not any(block_id in self.index for block_id in plain), "a plain block has content"
        self.index.check()
