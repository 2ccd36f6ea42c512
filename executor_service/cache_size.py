# SPDX-License-Identifier: Apache-2.0
"""How many blocks each cache group gets, and how long a context they can hold.

Plain arithmetic over settings, the model's groups and the memory that is free. Knows no tensors.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from executor_service.config import ExecutorConfig
from executor_service.scheduling.cache_group import CacheGroup
from protos.errors import ConfigError


@dataclass(frozen=True)
class CacheSize:
    """bytes_per_token: of keys and values in one layer. context_tokens: the longest that may be served."""

    config: ExecutorConfig
    groups: tuple[CacheGroup, ...]
    bytes_per_token: int
    context_tokens: int

    def num_blocks(self, free_bytes: int) -> tuple[int, ...]:
        """Of each group: what the settings say, or what the memory allows, but no more than the sequences can use.
        EXECUTOR_NUM_BLOCKS is the first group's. Raises ConfigError where the memory does not hold them."""
        config = self.config
        if config.num_blocks:
            self._check(config.num_blocks, free_bytes)
            return self._counts(config.num_blocks)
        budget = int(free_bytes * config.kv_memory_fraction)
        first = bisect_right(range(1, self._useful(self.groups[0]) + 1), budget, key=self._bytes)
        if not first:
            raise ConfigError(
                f"EXECUTOR_KV_MEMORY_FRACTION={config.kv_memory_fraction}: a block takes {self._bytes(1)} bytes,"
                f" {free_bytes} are free"
            )
        return self._counts(first)

    def max_context_tokens(self, num_blocks: tuple[int, ...]) -> int:
        """Any row that is let in fits the pools alone."""
        return min(self._holds(group, count) for group, count in zip(self.groups, num_blocks, strict=True))

    def _holds(self, group: CacheGroup, count: int) -> int:
        """Behind a window blocks become free again: where one row's fit, the context has no limit here."""
        is_endless = group.window is not None and count >= self._blocks_of_row(group)
        return self.context_tokens if is_endless else min(self.context_tokens, count * self.config.block_tokens)

    def _check(self, first: int, free_bytes: int) -> None:
        if self._bytes(first) > free_bytes:
            raise ConfigError(
                f"EXECUTOR_NUM_BLOCKS={first}: they take {self._bytes(first)} bytes, {free_bytes} are free"
            )

    def _counts(self, first: int) -> tuple[int, ...]:
        return (first, *(min(first, self._useful(group)) for group in self.groups[1:]))

    def _bytes(self, first: int) -> int:
        layers = sum(n * group.num_layers for n, group in zip(self._counts(first), self.groups, strict=True))
        return layers * self.config.block_tokens * self.bytes_per_token

    def _useful(self, group: CacheGroup) -> int:
        return self.config.max_sequences * self._blocks_of_row(group)

    def _blocks_of_row(self, group: CacheGroup) -> int:
        """The most that one row has at a time. What a window sees begins inside a block; steps in flight write ahead
        of it."""
        all_blocks = -(-self.context_tokens // self.config.block_tokens)
        if group.window is None:
            return all_blocks
        ahead = self.config.max_step_tokens * self.config.depth
        return min(all_blocks, -(-(group.window + ahead) // self.config.block_tokens) + 1)
