# SPDX-License-Identifier: Apache-2.0
"""The blocks of every sequence, in all cache groups: cached prefixes found, blocks taken, left behind and given back.

Knows sequences and blocks. Does not know who runs next, or tensors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Many
from typing import NamedTuple

import numpy as np

from executor_service.scheduling.cache_group import CacheGroup
from executor_service.scheduling.group_blocks import GroupBlocks
from executor_service.scheduling.prefix_index import Content, block_hash, root_hash
from executor_service.scheduling.sequence import HeldBlocks, Sequence


class Hit(NamedTuple):
    """The cached start of a sequence: how many tokens, and their blocks in each group."""

    num_tokens: int
    blocks: tuple[HeldBlocks, ...]


class SequenceCache:
    """num_blocks: of each group, block_tokens tokens each. Numbers of blocks are lists with an entry for each group."""

    def __init__(self, groups: Many[CacheGroup], num_blocks: Many[int], block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.groups = [
            GroupBlocks(group, number, block_tokens) for group, number in zip(groups, num_blocks, strict=True)
        ]

    @property
    def num_free(self) -> list[int]:
        return [group.pool.num_free for group in self.groups]

    # ---- cached prefixes

    def contents(self, sequence: Sequence, num_blocks: int) -> list[Content]:
        """Of its first whole blocks, num_blocks at least; their tokens are known."""
        contents = sequence.contents
        if len(contents) < num_blocks:
            first, size = len(contents), self.block_tokens
            tokens = sequence.token_ids[first * size : num_blocks * size].astype(np.dtype("<i4"), copy=False).tobytes()
            parent = contents[-1].hash if contents else root_hash(sequence.cache_salt)
            for start in range(0, len(tokens), 4 * size):
                token_ids = tokens[start : start + 4 * size]
                contents.append(Content(block_hash(parent, token_ids), parent, token_ids))
                parent = contents[-1].hash
        return contents

    def find(self, sequence: Sequence) -> Hit:
        """The longest start that all groups have."""
        num_blocks = sequence.max_hit_tokens // self.block_tokens
        contents = self.contents(sequence, sequence.num_known // self.block_tokens)
        before = -1
        while num_blocks != before:
            before = num_blocks
            for group in self.groups:
                num_blocks = group.longest_hit(contents, num_blocks)
        return Hit(num_blocks * self.block_tokens, tuple(group.hit(contents, num_blocks) for group in self.groups))

    def is_cached(self, content: Content) -> bool:
        return all(group.pool.index.has(content.hash) for group in self.groups)

    def commit(self, sequence: Sequence, num_tokens: int) -> None:
        """A step that computed the tokens up to num_tokens is done: its whole blocks can be found from now on."""
        first, end = sequence.num_committed // self.block_tokens, num_tokens // self.block_tokens
        sequence.num_committed = num_tokens
        if first == end:
            return
        contents = self.contents(sequence, end)
        for group, held in zip(self.groups, sequence.blocks, strict=True):
            for i in range(first, end):
                group.pool.index.enter(held.block_ids[i], contents[i])

    def forget(self, sequence: Sequence) -> None:
        """Nobody finds what it holds any more."""
        for group, held in zip(self.groups, sequence.blocks, strict=True):
            for block_id in held.own:
                group.pool.index.forget(block_id)

    # ---- blocks come and go

    def num_wanted(self, sequence: Sequence, hit: Hit, chunk_tokens: int) -> list[int]:
        """Free blocks that the sequence needs to run: for all its known tokens, or what a window shows of them."""
        wanted = []
        for group, held in zip(self.groups, hit.blocks, strict=True):
            num_new = max(0, group.num_wanted(sequence.num_tokens, chunk_tokens) - len(held.own))
            num_free_hits = sum(group.pool.num_holders(block_id) == 0 for block_id in held.own)
            wanted.append(min(num_new + num_free_hits, group.pool.num_blocks))
        return wanted

    def open(self, sequence: Sequence, hit: Hit) -> None:
        """The sequence begins after its hit."""
        for group, held in zip(self.groups, hit.blocks, strict=True):
            group.pool.share(held.own)
        sequence.blocks = hit.blocks
        sequence.num_computed = sequence.num_committed = hit.num_tokens
        self._measure(sequence)

    def num_missing(self, sequence: Sequence, num_tokens: int) -> list[int]:
        """Blocks to take before tokens up to num_tokens can be computed. Where all are kept to the row's end, those of
        all known tokens are taken at once: a prompt that began is not stopped in its middle."""
        kept = max(num_tokens, sequence.num_tokens)
        return [
            max(0, group.blocks_for(kept if group.window is None else num_tokens) - len(held.block_ids))
            for group, held in zip(self.groups, sequence.blocks, strict=True)
        ]

    def take(self, sequence: Sequence, num_blocks: Many[int]) -> None:
        """Asked before: they are free."""
        for group, held, number in zip(self.groups, sequence.blocks, num_blocks, strict=True):
            block_ids = group.pool.allocate(number)
            assert block_ids is not None, f"{number} blocks are taken, {group.pool.num_free} are free"
            held.block_ids.extend(block_ids)
        self._measure(sequence)

    def leave_behind(self, sequence: Sequence) -> None:
        """Steps in flight still read what their queries see: only those committed count."""
        for group, held in zip(self.groups, sequence.blocks, strict=True):
            group.leave_behind(held, sequence.num_committed)

    def release(self, sequence: Sequence) -> None:
        for group, held in zip(self.groups, sequence.blocks, strict=False):
            group.release(held)
        sequence.blocks = ()
        sequence.num_reserved = 0

    def _measure(self, sequence: Sequence) -> None:
        sequence.num_reserved = min(len(held.block_ids) for held in sequence.blocks) * self.block_tokens

    def victims(
        self, lacking: Many[int], candidates: Iterable[Sequence], hit: Hit | None = None, at_least: int = 0
    ) -> list[Sequence] | None:
        """The first candidates whose release frees what is lacking, None where all of them do not. Blocks of the hit
        do not count: they are to be held again."""
        kept = [set(held.own) for held in hit.blocks] if hit else [set[int]() for _ in self.groups]
        released: list[Counter[int]] = [Counter() for _ in self.groups]
        missing = list(lacking)
        chosen: list[Sequence] = []
        for candidate in candidates:
            if len(chosen) >= at_least and max(missing) <= 0:
                break
            chosen.append(candidate)
            for i, (group, held) in enumerate(zip(self.groups, candidate.blocks, strict=True)):
                released[i].update(held.own)
                freed = [b for b in held.own if released[i][b] == group.pool.num_holders(b) and b not in kept[i]]
                missing[i] -= len(freed)
        return chosen if len(chosen) >= at_least and max(missing) <= 0 else None

    def check(self, holders: Iterable[Sequence]) -> None:
        """Every block is held by exactly those who say so."""
        held_by = list(holders)
        for i, group in enumerate(self.groups):
            group.pool.check()
            held = Counter(block_id for sequence in held_by if sequence.blocks for block_id in sequence.blocks[i].own)
            numbers = [group.pool.num_holders(block_id) for block_id in range(group.pool.num_blocks)]
            assert numbers == [held[block_id] for block_id in range(group.pool.num_blocks)]
