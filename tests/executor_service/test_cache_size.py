# SPDX-License-Identifier: Apache-2.0
"""Blocks of each cache group, from the settings or from the memory that is free, and the contexts they hold."""

from pathlib import Path
from typing import Any

import pytest

from executor_service.cache_size import CacheSize
from executor_service.config import ExecutorConfig
from executor_service.scheduling.cache_group import CacheGroup
from protos.errors import ConfigError

FULL, WINDOW = CacheGroup(None, 2), CacheGroup(48, 10)
BLOCK_TOKENS = 16
PLENTY = 10**12


def size(*groups: CacheGroup, context_tokens: int = 4096, **settings: Any) -> CacheSize:
    """A row of WINDOW takes 48 + 32 tokens and the rest of a block: 6 blocks."""
    settings = {"block_tokens": BLOCK_TOKENS, "max_step_tokens": 32, "max_sequences": 4} | settings
    return CacheSize(ExecutorConfig(Path(), **settings), groups, bytes_per_token=8, context_tokens=context_tokens)


def test_the_setting_is_the_first_groups() -> None:
    assert size(FULL, num_blocks=100).num_blocks(PLENTY) == (100,)
    assert size(FULL, WINDOW, num_blocks=100).num_blocks(PLENTY) == (100, 4 * 6)
    assert size(FULL, WINDOW, num_blocks=10).num_blocks(PLENTY) == (10, 10)
    assert size(FULL, WINDOW, num_blocks=100, depth=2).num_blocks(PLENTY) == (100, 4 * 8)


def test_memory_is_filled_but_not_past_what_sequences_can_use() -> None:
    assert size(FULL, kv_memory_fraction=0.5).num_blocks(2 * 25 * 2 * 16 * 8) == (25,)
    assert size(FULL, WINDOW).num_blocks(PLENTY) == (4 * 256, 4 * 6)
    assert size(FULL, WINDOW, context_tokens=64).num_blocks(PLENTY) == (4 * 4, 4 * 4)


@pytest.mark.parametrize("free_bytes", [3_072, 10_000, 40_000, 123_456, 200_000])
def test_one_block_more_would_not_fit(free_bytes: int) -> None:
    of_groups = size(FULL, WINDOW, kv_memory_fraction=1.0)

    def used_bytes(first: int) -> int:
        full, windowed = size(FULL, WINDOW, num_blocks=first).num_blocks(PLENTY)
        return (full * FULL.num_layers + windowed * WINDOW.num_layers) * BLOCK_TOKENS * 8

    first, windowed = of_groups.num_blocks(free_bytes)
    assert windowed == min(first, 24)
    assert used_bytes(first) <= free_bytes < used_bytes(first + 1)


def test_too_little_memory_is_named() -> None:
    with pytest.raises(ConfigError, match=r"EXECUTOR_NUM_BLOCKS=100: they take 56320 bytes, 56319 are free"):
        size(FULL, WINDOW, num_blocks=100).num_blocks(56_319)
    with pytest.raises(ConfigError, match=r"EXECUTOR_KV_MEMORY_FRACTION=0\.5: a block takes 256 bytes, 500 are free"):
        size(FULL).num_blocks(500)


def test_any_row_that_is_let_in_fits_the_pools_alone() -> None:
    assert size(FULL).max_context_tokens((10,)) == 160
    assert size(FULL, context_tokens=100).max_context_tokens((10,)) == 100
    assert size(FULL, WINDOW).max_context_tokens((10, 10)) == 160
    assert size(FULL, WINDOW, max_step_tokens=512).max_context_tokens((20, 15)) == 240


def test_a_context_may_outgrow_the_pool_where_all_see_a_window() -> None:
    assert size(WINDOW).max_context_tokens((6,)) == 4096
    assert size(WINDOW).max_context_tokens((5,)) == 80
    assert size(WINDOW).num_blocks(PLENTY) == (24,)
