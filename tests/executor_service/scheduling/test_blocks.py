# SPDX-License-Identifier: Apache-2.0
"""Blocks are given out once, shared by count, and keep what they hold until they are needed."""

from __future__ import annotations

import pytest

from executor_service.scheduling.blocks import BlockPool
from executor_service.scheduling.prefix_index import Content


def content(number: int) -> Content:
    return Content(bytes([number]), b"parent", b"ids")


def cached(pool: BlockPool, numbers: list[int]) -> list[int]:
    """Blocks that were held and entered, and are free again."""
    block_ids = pool.allocate(len(numbers))
    assert block_ids is not None
    for block_id, number in zip(block_ids, numbers, strict=True):
        pool.index.enter(block_id, content(number))
    pool.release(block_ids)
    pool.check()
    return block_ids


def test_each_block_is_given_out_once() -> None:
    pool = BlockPool(5)
    first, second = pool.allocate(2), pool.allocate(3)
    assert first is not None
    assert second is not None
    assert sorted(first + second) == [0, 1, 2, 3, 4]
    assert pool.allocate(1) is None
    assert (pool.num_free, pool.num_used) == (0, 5)
    pool.release(first)
    pool.check()
    assert pool.num_free == 2


def test_released_twice_is_our_own_mistake() -> None:
    pool = BlockPool(2)
    block_ids = pool.allocate(1)
    assert block_ids is not None
    pool.release(block_ids)
    with pytest.raises(AssertionError, match="released twice"):
        pool.release(block_ids)


def test_cached_blocks_count_as_free_and_are_given_out_last() -> None:
    pool = BlockPool(4)
    known = cached(pool, [1, 2])
    assert pool.num_free == 4
    plain = pool.allocate(2)
    assert plain is not None
    assert not set(plain) & set(known)
    assert pool.index.find(content(1)) == known[0]


def test_block_released_longest_ago_loses_its_content_first() -> None:
    pool = BlockPool(3)
    known = cached(pool, [1, 2, 3])
    pool.share([known[0]])
    pool.release([known[0]])
    assert pool.allocate(2) == [known[1], known[2]]
    assert [pool.index.find(content(number)) for number in (1, 2, 3)] == [known[0], None, None]
    pool.check()


def test_shared_block_is_free_when_its_last_holder_gives_it_back() -> None:
    pool = BlockPool(2)
    known = cached(pool, [1])
    pool.share(known)
    pool.share(known)
    pool.check()
    pool.release(known)
    assert (pool.num_used, pool.num_holders(known[0])) == (1, 1)
    pool.release(known)
    assert pool.num_used == 0
    pool.check()


def test_check_sees_a_lost_block() -> None:
    pool = BlockPool(2)
    pool._plain.pop()
    with pytest.raises(AssertionError, match="a block is lost"):
        pool.check()
