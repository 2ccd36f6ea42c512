# SPDX-License-Identifier: Apache-2.0
"""What a step says of a row, and what its next id may not be."""

from __future__ import annotations

import numpy as np

from executor_service.scheduling.scheduler import Scheduler
from executor_service.scheduling.sequence import Sampling
from executor_service.scheduling.step import Limits, StepRow
from executor_service.scheduling.step_rows import limits_of, step_row
from tests.fixtures.engine_loop import EngineLoop
from tests.fixtures.sequences import make_cache, make_sequence

COUNTED = Sampling(presence_penalty=1.0)


class Banning:
    """Bans what follows the last id of the output."""

    def next_token_ids(self, output: np.ndarray) -> list[int]:
        return [int(output[-1]) + 1] if len(output) else [70]


def rows_of(loop: EngineLoop, request_id: int) -> list[StepRow]:
    return [row for step in loop.runner.steps for row in step.rows if row.key.request_id == request_id]


def make_loop(max_step_tokens: int = 8, depth: int = 1) -> EngineLoop:
    return EngineLoop(Scheduler(make_cache(), max_step_tokens, max_sequences=4), depth=depth)


def test_nothing_that_limits_is_none() -> None:
    assert limits_of(make_sequence()) is None
    assert limits_of(make_sequence(num_tokens=6, num_prompt_tokens=4, min_output_tokens=2)) is None


def test_limits_join_what_is_banned_by_the_output_so_far() -> None:
    sequence = make_sequence(
        num_tokens=6, num_prompt_tokens=4, min_output_tokens=3, stop_token_ids=frozenset({9}), banned=(Banning(),) * 2
    )
    assert limits_of(sequence) == Limits((9, 6, 6))
    assert limits_of(make_sequence(banned=(Banning(),))) == Limits((70,))


def test_limits_are_made_when_all_ids_before_are_known() -> None:
    """At depth 2 too, where the next step is launched earlier."""
    for depth in (1, 2):
        loop = make_loop(depth=depth)
        loop.add(make_sequence(1, banned=(Banning(),)), make_sequence(2))
        assert loop.run()[1] == [4, 6, 8, 10]
        assert all(limits[1] is None for limits in loop.runner.limits)


def test_row_that_ended_has_no_limits() -> None:
    loop = make_loop(depth=2)
    sequence = make_sequence(banned=(Banning(),))
    loop.add(sequence)
    step = loop.scheduler.schedule()
    assert step
    loop.cancel(sequence.key)
    assert loop.scheduler.limits(step) == [None]


def test_prompt_targets_follow_the_first_tokens_of_each_chunk() -> None:
    loop = make_loop()
    loop.add(make_sequence(1, 17, sampling=Sampling(prompt_logprobs=3)))
    loop.run()
    targets = [None if r.prompt_targets is None else r.prompt_targets.tolist() for r in rows_of(loop, 1)]
    assert targets[:3] == [list(range(1, 9)), list(range(9, 17)), None]
    assert [row.num_prompt_top for row in rows_of(loop, 1)][:3] == [3, 3, 0]


def test_known_output_is_no_target() -> None:
    sequence = make_sequence(num_tokens=6, num_prompt_tokens=4, sampling=Sampling(prompt_logprobs=0))
    targets = step_row(sequence, 6).prompt_targets
    assert targets is not None
    assert targets.tolist() == [1, 2, 3]
    sequence.num_scored = 4
    assert step_row(sequence, 6).prompt_targets is None


def test_row_has_the_lowest_free_slot_from_its_first_step_to_its_last() -> None:
    loop = make_loop(max_step_tokens=32)
    loop.add(*(make_sequence(i, max_output_tokens=3) for i in range(4)))
    loop.turn()
    loop.cancel(make_sequence(2).key)
    loop.add(make_sequence(5))
    loop.run()
    assert [{row.slot for row in rows_of(loop, i)} for i in (0, 1, 2, 3, 5)] == [{0}, {1}, {2}, {3}, {2}]


def test_a_block_is_named_once_while_a_row_keeps_its_slot() -> None:
    loop = make_loop(max_step_tokens=8)
    sequence = make_sequence(1, 12, max_output_tokens=12)
    loop.add(sequence)
    for _ in range(8):
        loop.turn()
    new = [row.new_blocks[0] for row in rows_of(loop, 1)]
    named = [(blocks.first, len(blocks.block_ids)) for blocks in new if blocks.block_ids]
    assert named == [(0, 3), (3, 1), (4, 1)]
    loop.scheduler.give_up(sequence.key)
    loop.turn()
    again = rows_of(loop, 1)[8].new_blocks[0]
    assert (again.first, len(again.block_ids)) == (0, 5)


def test_history_comes_with_the_first_step_that_samples_in_a_slot() -> None:
    loop = make_loop()
    sequence = make_sequence(1, 12, sampling=COUNTED)
    loop.add(sequence)
    for _ in range(3):
        loop.turn()
    loop.scheduler.give_up(sequence.key)
    loop.run()
    histories = [None if r.history is None else r.history.token_ids.tolist() for r in rows_of(loop, 1)]
    assert histories == [None, list(range(12)), None, list(range(14)), None]
    assert all(row.history.num_prompt_tokens == 12 for row in rows_of(loop, 1) if row.history)
