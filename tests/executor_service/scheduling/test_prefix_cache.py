# SPDX-License-Identifier: Apache-2.0
"""What was computed before is found again, and nothing else is: through the scheduler, with a device that checks what
each row reads."""

from __future__ import annotations

import numpy as np
import pytest

from executor_service.scheduling.scheduler import Scheduler
from executor_service.scheduling.sequence import Sampling, Sequence
from executor_service.scheduling.step import Failure
from tests.fixtures.checking_runner import CheckingRunner
from tests.fixtures.engine_loop import EngineLoop
from tests.fixtures.sequences import make_cache, make_sequence

SCORED = Sampling(prompt_logprobs=0)


def make_loop(
    num_blocks: int = 64, windows: tuple[int | None, ...] = (None,), depth: int = 1, max_step_tokens: int = 32
) -> EngineLoop:
    cache = make_cache(num_blocks, block_tokens=4, windows=windows)
    return EngineLoop(Scheduler(cache, max_step_tokens, max_sequences=8), CheckingRunner(cache), depth)


def add(loop: EngineLoop, *sequences: Sequence) -> None:
    for sequence in sequences:
        loop.runner.expect(sequence)  # type: ignore[attr-defined]
        loop.add(sequence)


def num_cached(loop: EngineLoop, request_id: int, num_tokens: int, **fields: object) -> int:
    """Tokens of the prompt that a row found, run to its end."""
    sequence = make_sequence(request_id, num_tokens, **fields)
    add(loop, sequence)
    loop.run()
    start = loop.results[sequence.key].start
    assert start
    return start.num_cached_tokens


@pytest.mark.parametrize(("num_tokens", "cached"), [(3, 0), (4, 0), (5, 4), (15, 12), (16, 12), (17, 16), (40, 16)])
def test_hit_leaves_at_least_one_token_to_compute(num_tokens: int, cached: int) -> None:
    loop = make_loop()
    assert num_cached(loop, 1, 16, max_output_tokens=1) == 0
    assert num_cached(loop, 2, num_tokens) == cached


def test_output_is_found_too() -> None:
    """A row that another executor began, or the next turn of a chat."""
    loop = make_loop()
    num_cached(loop, 1, 6, max_output_tokens=11)  # knows ids 0 to 16, the last one not computed
    assert num_cached(loop, 2, 30) == 16


def test_taken_over_row_reports_no_more_than_its_prompt() -> None:
    loop = make_loop()
    num_cached(loop, 1, 20)
    assert num_cached(loop, 2, 17, num_prompt_tokens=10, max_output_tokens=9) == 10
    assert (loop.scheduler.num_prefix_query_tokens, loop.scheduler.num_prefix_hit_tokens) == (37, 16)


def test_salt_separates() -> None:
    loop = make_loop()
    num_cached(loop, 1, 20, cache_salt=b"a")
    assert num_cached(loop, 2, 20, cache_salt=b"b") == 0
    assert num_cached(loop, 3, 20) == 0
    assert num_cached(loop, 4, 20, cache_salt=b"a") == 16


def test_hit_is_one_that_every_group_has_whole() -> None:
    """The second window's hit is shorter, and there the first window has lost what it would see: a shorter one yet."""
    loop = make_loop(windows=(8, 12))
    num_cached(loop, 1, 40, max_output_tokens=1)
    first, second = loop.scheduler.cache.groups
    cache = loop.scheduler.cache
    contents = cache.contents(make_sequence(9, 41), 10)
    for group, lost in ((second, 8), (first, 7)):
        block_id = group.pool.index.find(contents[lost])
        assert block_id is not None
        group.pool._cached.move_to_end(block_id, last=False)
        group.pool._plain.append(group.pool._evict())
    assert num_cached(loop, 2, 41) == 28


def test_least_recently_used_prefix_goes_first_and_from_its_end() -> None:
    def prompt(first: int) -> np.ndarray:
        return np.arange(first, first + 17, dtype=np.int32)

    loop = make_loop(num_blocks=11)
    for request_id, first in ((1, 100), (2, 200), (3, 100)):
        num_cached(loop, request_id, 0, token_ids=prompt(first), max_output_tokens=1)
    # 8 blocks are cached, 3 are plain: two have to go.
    num_cached(loop, 4, 0, token_ids=prompt(300), max_output_tokens=1)
    assert num_cached(loop, 5, 0, token_ids=prompt(100), max_output_tokens=1) == 16
    assert num_cached(loop, 6, 0, token_ids=prompt(200), max_output_tokens=1) == 8


def test_blocks_are_found_only_after_their_step_is_committed() -> None:
    loop = make_loop(depth=2)
    add(loop, make_sequence(1, 17, max_output_tokens=9))
    assert loop.turn()
    late = make_sequence(2, 17, max_output_tokens=1)
    assert loop.scheduler.cache.find(late).num_tokens == 0
    loop.turn()
    assert loop.scheduler.cache.find(late).num_tokens == 16
    loop.run()


# ---- prompt logprobs


def test_prompt_logprobs_compute_cached_positions_again() -> None:
    loop = make_loop()
    num_cached(loop, 1, 20)
    assert num_cached(loop, 2, 20, sampling=SCORED) == 0
    assert [-p for p in loop.results[make_sequence(2).key].prompt_logprobs] == list(range(1, 20))


@pytest.mark.parametrize(("num_turns", "cached"), [(1, 4), (2, 12), (3, 16), (4, 20), (5, 20)])
def test_prompt_logprobs_come_once_whenever_the_row_is_preempted(num_turns: int, cached: int) -> None:
    """What was reported may be taken from the cache afterwards: of 6, 12, 18 and all 20 tokens."""
    loop = make_loop(max_step_tokens=6)
    sequence = make_sequence(1, 20, sampling=SCORED)
    add(loop, sequence)
    for _ in range(num_turns):
        loop.turn()
    loop.scheduler.give_up(sequence.key)
    step = loop.turn()
    assert loop.scheduler.num_preemptions == 1
    assert step
    assert step.rows[0].first_position == cached
    loop.run()
    result = loop.results[sequence.key]
    assert [-p for p in result.prompt_logprobs] == list(range(1, 20))
    assert result.start
    assert result.start.num_cached_tokens == 0  # when it first ran


# ---- windows


def test_windowed_group_needs_only_what_the_next_query_sees() -> None:
    """Window 6: after 16 tokens the next query sees 5 of them, in the last two blocks."""
    loop = make_loop(windows=(6,))
    num_cached(loop, 1, 16, max_output_tokens=1)
    pool = loop.scheduler.cache.groups[0].pool
    contents = loop.scheduler.cache.contents(make_sequence(num_tokens=16), 4)
    for content in contents[:2]:
        block_id = pool.index.find(content)
        assert block_id is not None
        pool.share([block_id])
        pool.index.forget(block_id)
        pool.release([block_id])
    add(loop, make_sequence(2, 20))
    step = loop.turn()
    assert step
    assert step.rows[0].first_position == 16
    assert step.rows[0].new_blocks[0].block_ids[:2] == [0, 0]
    loop.run()


def test_hit_is_the_longest_that_all_groups_have() -> None:
    """The windowed group lost its third block: a hit of 3 or 4 blocks needs it, one of 2 does not."""
    loop = make_loop(windows=(None, 6))
    num_cached(loop, 1, 16, max_output_tokens=1)
    pool = loop.scheduler.cache.groups[1].pool
    block_id = pool.index.find(loop.scheduler.cache.contents(make_sequence(num_tokens=16), 4)[2])
    assert block_id is not None
    pool.share([block_id])
    pool.index.forget(block_id)
    pool.release([block_id])
    assert num_cached(loop, 2, 20) == 8


def test_row_gives_up_blocks_that_its_window_has_left_and_they_stay_known() -> None:
    loop = make_loop(num_blocks=8, windows=(6,), max_step_tokens=4)
    sequence = make_sequence(1, 60, max_output_tokens=1)
    add(loop, sequence)
    most = 0
    while loop.scheduler.has_work:
        loop.turn()
        most = max(most, loop.scheduler.num_used_blocks)
    assert most == 3  # 5 tokens before the chunk and 4 of it
    assert loop.scheduler.num_preemptions == 0
    assert num_cached(loop, 2, 60, max_output_tokens=1) == 56


# ---- equal prefixes


@pytest.mark.parametrize("depth", [1, 2])
def test_choices_of_one_prompt_share_its_blocks(depth: int) -> None:
    """All at once: the others wait for the first, then each computes what is left of the prompt."""
    loop = make_loop(depth=depth, max_step_tokens=16)
    add(loop, *(make_sequence(i, 42, max_output_tokens=3) for i in range(4)))
    add(loop, make_sequence(4, token_ids=np.full(4, 9, np.int32), max_output_tokens=3))
    first_steps = [loop.turn(), loop.turn()]
    assert {row.key.request_id for step in first_steps if step for row in step.rows} == {0, 4}
    loop.run()
    computed = sum(step.num_tokens for step in loop.runner.steps)
    assert computed <= 42 + 3 * 2 + 4 + 5 * 3
    assert [r.start.num_cached_tokens for r in loop.results.values() if r.start] == [0, 40, 40, 40, 0]


@pytest.mark.parametrize("end", ["cancel", "preempt", "fail"])
def test_row_that_waits_for_another_goes_on_when_that_is_gone(end: str) -> None:
    loop = make_loop(max_step_tokens=16)
    first, second = make_sequence(1, 42), make_sequence(2, 42)
    add(loop, first, second)
    loop.turn()
    loop.turn()
    if end == "fail":
        loop.runner.failures[1, 0] = Failure.NOT_FINITE
    elif end == "cancel":
        loop.cancel(first.key)
    else:
        loop.scheduler.give_up(first.key)
    loop.run()
    assert loop.token_ids[2] == [42, 43, 44, 45]


def test_urgent_row_does_not_wait_for_one_of_lower_priority() -> None:
    loop = make_loop(max_step_tokens=16)
    add(loop, make_sequence(1, 42))
    loop.turn()
    add(loop, make_sequence(2, 42, priority=1))
    step = loop.turn()
    assert step
    assert [row.key.request_id for row in step.rows] == [2]
    loop.run()


def test_row_with_no_numbers_leaves_nothing_to_be_found() -> None:
    loop = make_loop()
    loop.runner.failures[1, 2] = Failure.NOT_FINITE
    add(loop, make_sequence(1, 20))
    loop.run()
    assert num_cached(loop, 2, 20) == 0
