# SPDX-License-Identifier: Apache-2.0
"""Who runs, who waits and who gives way: priority, arrival, fairness, and no standstill."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import pytest

from executor_service.scheduling.scheduler import Scheduler
from executor_service.scheduling.sequence import RowKey, Sequence
from executor_service.scheduling.step import Finish, Step
from tests.fixtures.engine_loop import EngineLoop
from tests.fixtures.sequences import make_cache, make_sequence


def make_loop(
    num_blocks: int = 64, max_step_tokens: int = 32, max_sequences: int = 8, depth: int = 1, **cache: Any
) -> EngineLoop:
    return EngineLoop(Scheduler(make_cache(num_blocks, **cache), max_step_tokens, max_sequences), depth=depth)


def unlike(request_id: int, num_tokens: int = 4, **fields: object) -> Sequence:
    """A row that shares no prefix with another."""
    token_ids = (np.arange(num_tokens) + 37 * (request_id + 1)).astype(np.int32)
    return make_sequence(request_id, token_ids=token_ids, **fields)


def shape(step: Step | None) -> list[tuple[int, int]]:
    """Which rows, with how many tokens."""
    return [(row.key.request_id, row.num_tokens) for row in step.rows] if step else []


def test_first_come_first_served() -> None:
    loop = make_loop(max_sequences=2)
    loop.add(unlike(5), unlike(3), unlike(4))
    assert shape(loop.turn()) == [(5, 4), (3, 4)]


def test_higher_priority_goes_first() -> None:
    loop = make_loop(max_step_tokens=8)
    loop.add(unlike(1, 8), unlike(2, 8, priority=-1), unlike(3, 8, priority=5), unlike(4, 8, priority=5))
    assert [shape(loop.turn())[-1] for _ in range(2)] == [(3, 8), (4, 7)]
    order = [key.request_id for key in (row.key for step in loop.runner.steps for row in step.rows)]
    loop.run()
    assert order.index(3) < order.index(4)
    firsts = [row.key.request_id for step in loop.runner.steps for row in step.rows if row.first_position == 0]
    assert firsts == [3, 4, 1, 2]


def test_running_prompt_of_higher_priority_goes_before_an_earlier_one() -> None:
    loop = make_loop(max_step_tokens=8)
    loop.add(unlike(1, 40))
    loop.turn()
    loop.add(unlike(2, 40, priority=1))
    assert [shape(loop.turn()) for _ in range(5)] == [[(2, 8)]] * 5
    loop.run()


def test_decode_rows_and_prompts_share_a_step() -> None:
    loop = make_loop(max_step_tokens=10)
    loop.add(unlike(1))
    loop.turn()
    loop.add(unlike(2, 30))
    assert shape(loop.turn()) == [(1, 1), (2, 9)]


def test_more_decode_rows_than_a_step_takes_wait_for_one_step_at_most() -> None:
    loop = make_loop(max_step_tokens=8)
    loop.add(*(unlike(i, 1, max_output_tokens=30) for i in range(7)))
    loop.turn()
    loop.scheduler.max_step_tokens = 4
    last = dict.fromkeys(range(7), 0)
    for number in range(1, 12):
        for request_id, _ in shape(loop.turn()):
            last[request_id] = number
        assert number - min(last.values()) <= 1
    loop.run()


# ---- long prompts and short ones


def test_short_prompt_is_answered_while_a_long_one_is_computed() -> None:
    """B39: one stream decodes, then a prompt of 50 chunks, then one of 5 ids."""
    loop = make_loop(num_blocks=1000, max_step_tokens=32)
    loop.add(unlike(1, max_output_tokens=100))
    loop.turn()
    loop.add(unlike(2, 50 * 32))
    loop.turn()
    loop.add(unlike(3, 5))
    assert shape(loop.turn()) == [(1, 1), (3, 5), (2, 26)]
    while len(loop.token_ids[3]) < 4:
        loop.turn()
    assert loop.scheduler.sequences[RowKey(1, 2)].num_computed < 6 * 32
    loop.run()
    assert all((1, 1) in shape(step) for step in loop.runner.steps[1:50])
    assert len(loop.token_ids[2]) == 4


@pytest.mark.parametrize("depth", [1, 2])
def test_steady_feed_of_short_prompts_does_not_starve_a_long_one(depth: int) -> None:
    """B39: however many come, half of what decode rows leave is the long one's."""
    loop = make_loop(num_blocks=1000, max_step_tokens=32, max_sequences=64, depth=depth)
    long = unlike(0, 20 * 32)
    loop.add(long)
    ids = count(1)
    num_steps = 0
    while long.num_known_output == 0:
        loop.add(*(unlike(next(ids), 8, max_output_tokens=1) for _ in range(5)))
        loop.turn()
        num_steps += 1
    assert 2 * 20 <= num_steps <= 2 * 20 + 3
    loop.run()


def test_short_prompt_of_lower_priority_does_not_overtake() -> None:
    loop = make_loop(max_step_tokens=16)
    loop.add(unlike(1, 64, priority=1))
    loop.turn()
    loop.add(unlike(2, 4), unlike(3, 4, priority=1))
    assert shape(loop.turn()) == [(3, 4), (1, 12)]
    loop.run()


def test_prompt_whose_rest_is_short_after_its_hit_overtakes() -> None:
    loop = make_loop(num_blocks=200, max_step_tokens=16)
    loop.add(make_sequence(1, 40))
    loop.run()
    loop.add(unlike(2, 200))
    loop.turn()
    loop.add(make_sequence(3, 42))
    assert shape(loop.turn()) == [(3, 2), (2, 14)]
    loop.run()


def test_nobody_goes_past_a_row_that_waits_for_blocks() -> None:
    loop = make_loop(num_blocks=16)
    loop.add(unlike(1, 32, max_output_tokens=12))
    loop.turn()
    loop.add(unlike(2, 40), unlike(3))
    while RowKey(1, 1) in loop.scheduler.sequences:
        assert [request_id for request_id, _ in shape(loop.turn())] == [1]
    assert set(dict(shape(loop.turn()))) == {2, 3}
    loop.run()


# ---- blocks run out


def test_oldest_row_runs_in_every_step() -> None:
    loop = make_loop(num_blocks=8)
    loop.add(*(unlike(i, 8, max_output_tokens=24) for i in range(3)))
    while RowKey(1, 0) in loop.scheduler.sequences:
        assert 0 in dict(shape(loop.turn()))
    loop.run()
    assert loop.scheduler.num_preemptions > 0


def test_row_of_lowest_priority_gives_way_first() -> None:
    loop = make_loop(num_blocks=9)
    loop.add(unlike(1, 8, priority=1), unlike(2, 8, max_output_tokens=9), unlike(3, 8, max_output_tokens=9))
    loop.add(unlike(4, 8, priority=1, max_output_tokens=9))
    left = set()
    while loop.scheduler.has_work:
        loop.turn()
        left |= {row.key.request_id for row in loop.scheduler.waiting}
    assert 3 in left
    assert 4 not in left


@pytest.mark.parametrize("depth", [1, 2])
def test_stream_waits_for_blocks_for_one_step_at_most(depth: int) -> None:
    """At depth 2 whoever could give way is in flight: it is left out of one step, then its blocks are free."""
    loop = make_loop(num_blocks=8, depth=depth)
    loop.add(*(unlike(i, 5, max_output_tokens=26) for i in range(4)))
    loop.turn()
    gap = most = 0
    while RowKey(1, 0) in loop.scheduler.sequences:
        sequence = loop.scheduler.sequences[RowKey(1, 0)]
        if sequence.is_complete:
            break
        gap = 0 if 0 in dict(shape(loop.turn())) else gap + 1
        most = max(most, gap)
    assert most <= depth - 1
    assert loop.scheduler.num_preemptions > 0
    loop.run()


def test_row_that_gives_way_does_not_run_on_while_others_wait_for_its_blocks() -> None:
    loop = make_loop(num_blocks=4, depth=2)
    loop.add(unlike(1, 7, max_output_tokens=9), unlike(2, 7, max_output_tokens=9))
    steps = [shape(loop.turn()) for _ in range(5)]
    # Both have one place left in their second blocks; the first then needs a third.
    assert steps == [[(1, 7), (2, 7)], [(1, 1), (2, 1)], [], [(1, 1)], [(1, 1)]]
    loop.run()


def test_prompt_without_blocks_is_first_in_the_next_step_but_takes_no_stream_its_turn() -> None:
    """A group with a window gives a prompt its blocks chunk by chunk."""
    loop = make_loop(num_blocks=7, max_step_tokens=4, windows=(1000,))
    loop.add(unlike(0, 2, max_output_tokens=9))
    loop.turn()
    loop.add(unlike(1, 15, max_output_tokens=1))
    loop.turn()
    loop.add(unlike(2, 1, max_output_tokens=9))
    steps = [shape(loop.turn()) for _ in range(6)]
    # The last block goes to row 2, which is in the step already when the prompt asks; then it gives way.
    assert steps[3:] == [[(0, 1), (2, 1), (1, 2)], [(0, 1), (2, 1)], [(1, 2), (0, 1)]]
    loop.run()


def test_nobody_is_let_in_while_a_running_row_is_short_of_blocks() -> None:
    loop = make_loop(num_blocks=7, max_step_tokens=8, windows=(1000,))
    loop.add(unlike(0, 2, max_output_tokens=9))
    loop.turn()
    loop.add(unlike(1, 23, max_output_tokens=1))
    loop.turn()
    loop.turn()
    assert shape(loop.turn()) == [(0, 1)]
    loop.add(unlike(2, 1))  # for which the block that is left would do
    assert [shape(loop.turn()) for _ in range(2)] == [[(0, 1)], [(0, 1)]]
    loop.run()


# ---- in place of others


def test_urgent_row_takes_the_place_of_the_lowest() -> None:
    loop = make_loop(max_sequences=2)
    loop.add(unlike(1), unlike(2), unlike(3))
    loop.turn()
    loop.add(unlike(4, priority=1))
    assert shape(loop.turn()) == [(1, 1), (4, 4)]
    assert [row.key.request_id for row in loop.scheduler.waiting] == [2, 3]
    assert {len(ids) for ids in loop.run().values()} == {4}


def test_urgent_row_takes_blocks_of_as_many_as_it_needs() -> None:
    loop = make_loop(num_blocks=8)
    loop.add(*(unlike(i, 7, max_output_tokens=2) for i in range(4)))
    loop.turn()
    loop.add(unlike(4, 14, priority=1))
    assert shape(loop.turn()) == [(0, 1), (1, 1), (4, 14)]
    loop.run()


def test_urgent_row_displaces_nobody_where_that_makes_no_room() -> None:
    loop = make_loop(num_blocks=8)
    loop.add(unlike(1, 20, priority=1), unlike(2, 8))
    loop.turn()
    loop.add(unlike(3, 20, priority=1))
    loop.turn()
    assert loop.scheduler.num_preemptions == 0
    loop.run()


def test_row_of_equal_priority_displaces_nobody() -> None:
    loop = make_loop(max_sequences=1)
    loop.add(unlike(1))
    loop.turn()
    loop.add(unlike(2))
    loop.run()
    assert loop.scheduler.num_preemptions == 0


def test_urgent_row_takes_the_place_of_one_in_flight_after_its_commit() -> None:
    loop = make_loop(max_sequences=1, depth=2)
    loop.add(unlike(1, max_output_tokens=50))
    loop.turn()
    loop.turn()
    loop.add(unlike(2, priority=1))
    steps = [shape(loop.turn()) for _ in range(3)]
    assert steps[0] == []
    assert (2, 4) in steps[1]
    assert {len(ids) for ids in loop.run().values()} == {50, 4}


def test_urgent_row_keeps_the_prefix_that_it_shares_with_whom_it_displaces() -> None:
    loop = make_loop(num_blocks=8, max_step_tokens=64)
    loop.add(unlike(1), make_sequence(2, 16))
    loop.turn()
    loop.add(make_sequence(3, 29, priority=1))
    assert shape(loop.turn()) == [(3, 13)]
    loop.run()


def test_free_blocks_are_kept_for_whoever_waits_for_more() -> None:
    loop = make_loop(num_blocks=8, depth=2)
    loop.add(unlike(1, 7, max_output_tokens=9), unlike(2, 7, max_output_tokens=9))
    loop.turn()
    loop.turn()
    loop.add(unlike(3, 24, priority=1))
    assert [shape(loop.turn()) for _ in range(2)] == [[], [(3, 24)]]
    loop.run()


def test_urgent_row_takes_nothing_that_an_earlier_urgent_one_waits_for() -> None:
    loop = make_loop(num_blocks=4, depth=2)
    loop.add(unlike(1, 7, priority=1, max_output_tokens=6), unlike(2, 7, max_output_tokens=6))
    assert [shape(loop.turn()) for _ in range(3)][-1] == []
    loop.add(unlike(3, 8, priority=1))
    assert shape(loop.turn()) == [(1, 1)]
    assert loop.scheduler.num_preemptions == 1
    loop.run()


# ---- no standstill


@pytest.mark.parametrize("depth", [1, 2])
def test_row_as_large_as_the_pool_ends_and_a_small_one_is_served_beside_it(depth: int) -> None:
    """B31: 8 blocks of 16 tokens, a row of 128 and one of 10."""
    loop = make_loop(num_blocks=8, block_tokens=16, depth=depth)
    loop.add(unlike(1, 100, max_output_tokens=28))
    for _ in range(6):
        loop.turn()
    loop.add(unlike(2, 10))
    while len(loop.token_ids[2]) < 4:
        loop.turn()
    assert RowKey(1, 1) in loop.scheduler.sequences
    loop.run()
    assert isinstance(loop.results[RowKey(1, 1)].outcome, Finish)
    assert len(loop.token_ids[1]) == 28
