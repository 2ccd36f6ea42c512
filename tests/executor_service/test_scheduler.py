# SPDX-License-Identifier: Apache-2.0
"""Who runs next, what a step brings, and that blocks always come back."""

from __future__ import annotations

from typing import Any

import pytest

from executor_service.blocks import BlockPool
from executor_service.scheduler import Scheduler
from executor_service.sequence import RowKey
from executor_service.step import CANCELLED, Finish, FinishReason, RowOutput
from protos.errors import DeadlineExceeded
from tests.fixtures.sequences import CountingRunner, make_sequence


def make_scheduler(num_blocks: int = 64, max_step_tokens: int = 32, max_sequences: int = 8) -> Scheduler:
    return Scheduler(BlockPool(num_blocks, block_tokens=4), max_step_tokens, max_sequences)


def run(scheduler: Scheduler, runner: CountingRunner | None = None, max_steps: int = 1000) -> dict[RowKey, list[int]]:
    """Depth 1, until nothing is left: the ids of each row."""
    runner = runner or CountingRunner()
    token_ids: dict[RowKey, list[int]] = {}
    for _ in range(max_steps):
        step = scheduler.schedule()
        if step is None:
            return token_ids
        for output in scheduler.commit(step, runner.sampled(runner.forward(step))):
            assert output.position == len(token_ids.setdefault(output.key, []))
            token_ids[output.key].append(output.token_id)
    raise AssertionError("no end")


def shape(scheduler: Scheduler) -> list[tuple[int, int, int]]:
    step = scheduler.schedule()
    assert step
    return [(row.key.request_id, row.first_position, row.num_tokens) for row in step.rows]


def test_prompt_is_cut_into_chunks_under_the_budget() -> None:
    scheduler, runner = make_scheduler(max_step_tokens=10), CountingRunner()
    scheduler.add(make_sequence(num_tokens=25, max_output_tokens=1))
    assert run(scheduler, runner) == {(1, 1): [25]}
    chunks = [(row.first_position, row.num_tokens, bool(row.sampling)) for step in runner.steps for row in step.rows]
    assert chunks == [(0, 10, False), (10, 10, False), (20, 5, True)]


def test_decode_rows_and_prefill_chunks_share_a_step() -> None:
    scheduler, runner = make_scheduler(max_step_tokens=10), CountingRunner()
    scheduler.add(make_sequence(1, num_tokens=4))
    step = scheduler.schedule()
    assert step
    scheduler.commit(step, runner.sampled(runner.forward(step)))
    scheduler.add(make_sequence(2, num_tokens=30))
    assert shape(scheduler) == [(1, 4, 1), (2, 0, 9)]


def test_first_come_first_served() -> None:
    scheduler = make_scheduler(max_step_tokens=64, max_sequences=2)
    for request_id in (5, 3, 4):
        scheduler.add(make_sequence(request_id))
    assert [row[0] for row in shape(scheduler)] == [5, 3]


def test_stop_id_ends_the_row_and_is_its_last_id() -> None:
    scheduler, runner = make_scheduler(), CountingRunner()
    scheduler.add(make_sequence(num_tokens=4, max_output_tokens=9, stop_token_ids=frozenset({5})))
    outputs: list[RowOutput] = []
    while step := scheduler.schedule():
        outputs += scheduler.commit(step, runner.sampled(runner.forward(step)))
    assert [(o.token_id, o.outcome) for o in outputs] == [(4, None), (5, Finish(FinishReason.STOP, 5))]
    assert scheduler.pool.num_used == 0


def test_known_output_counts_as_output() -> None:
    """A row that another executor began: positions go on, max_tokens counts what was delivered."""
    scheduler, runner = make_scheduler(), CountingRunner()
    scheduler.add(make_sequence(num_tokens=6, num_prompt_tokens=4, max_output_tokens=4))
    step = scheduler.schedule()
    assert step
    first = scheduler.commit(step, runner.sampled(runner.forward(step)))[0]
    assert (first.position, first.token_id, first.outcome) == (2, 6, None)
    step = scheduler.schedule()
    assert step
    assert scheduler.commit(step, runner.sampled(runner.forward(step)))[0].outcome == Finish(FinishReason.LENGTH)


def test_preemption_changes_no_id() -> None:
    def outputs(num_blocks: int) -> tuple[dict[RowKey, list[int]], int]:
        scheduler = make_scheduler(num_blocks)
        for request_id in range(4):
            scheduler.add(make_sequence(request_id, num_tokens=6, max_output_tokens=20))
        result = run(scheduler)
        assert scheduler.pool.num_used == 0
        return result, scheduler.num_preemptions

    plenty, none = outputs(64)
    tight, some = outputs(10)
    assert none == 0
    assert some > 0
    assert tight == plenty
    assert {len(ids) for ids in tight.values()} == {20}


def test_oldest_row_is_never_preempted() -> None:
    scheduler, runner = make_scheduler(num_blocks=8), CountingRunner()
    for request_id in range(3):
        scheduler.add(make_sequence(request_id, num_tokens=8, max_output_tokens=24))
    first_row_steps = []
    while step := scheduler.schedule():
        scheduler.commit(step, runner.sampled(runner.forward(step)))
        if RowKey(1, 0) in scheduler.sequences:
            first_row_steps.append(any(row.key == (1, 0) for row in step.rows))
    assert scheduler.num_preemptions > 0
    assert all(first_row_steps)


@pytest.mark.parametrize("when", ["waiting", "mid chunk", "decoding"])
def test_cancel_frees_blocks_at_once(when: str) -> None:
    scheduler, runner = make_scheduler(max_step_tokens=8), CountingRunner()
    sequence = make_sequence(num_tokens=12)
    scheduler.add(sequence)
    for _ in range({"waiting": 0, "mid chunk": 1, "decoding": 2}[when]):
        step = scheduler.schedule()
        assert step
        scheduler.commit(step, runner.sampled(runner.forward(step)))
    assert [o.outcome for o in scheduler.end(sequence.key, CANCELLED)] == [CANCELLED]
    assert (scheduler.pool.num_used, len(scheduler.waiting), len(scheduler.running)) == (0, 0, 0)
    assert scheduler.end(sequence.key, CANCELLED) == []
    assert not scheduler.has_work


def test_cancelled_row_in_flight_keeps_its_blocks_until_commit() -> None:
    scheduler, runner = make_scheduler(), CountingRunner()
    sequence = make_sequence()
    scheduler.add(sequence)
    step = scheduler.schedule()
    assert step
    launched = runner.forward(step)
    scheduler.end(sequence.key, CANCELLED)
    assert scheduler.pool.num_used == 1
    assert scheduler.commit(step, runner.sampled(launched)) == []
    assert scheduler.pool.num_used == 0


def test_expired_row_never_starts() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence(1, deadline_s=5.0))
    scheduler.add(make_sequence(2, deadline_s=7.0))
    outcomes = [(o.key.request_id, type(o.outcome)) for o in scheduler.expire(6.0)]
    assert outcomes == [(1, DeadlineExceeded)]
    assert [row[0] for row in shape(scheduler)] == [2]


def test_stream_end_cancels_only_its_rows() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_sequence(1, stream_id=1))
    scheduler.add(make_sequence(1, stream_id=2))
    scheduler.cancel_stream(1)
    assert list(scheduler.sequences) == [(2, 1)]


def test_pool_gives_out_each_block_once() -> None:
    pool = BlockPool(5, block_tokens=4)
    first, second = pool.allocate(2), pool.allocate(3)
    assert first is not None
    assert second is not None
    assert sorted(first + second) == [0, 1, 2, 3, 4]
    assert pool.allocate(1) is None
    pool.release(first)
    assert pool.num_free == 2


def depth_two(scheduler: Scheduler, runner: Any) -> dict[RowKey, list[int]]:
    """The engine's loop with two steps on the device."""
    in_flight: list[Any] = []
    token_ids: dict[RowKey, list[int]] = {}
    while scheduler.has_work:
        step = scheduler.schedule()
        if step:
            in_flight.append((step, runner.forward(step)))
        if in_flight and (step is None or len(in_flight) == 2):
            done, launched = in_flight.pop(0)
            for output in scheduler.commit(done, runner.sampled(launched)):
                token_ids.setdefault(output.key, []).append(output.token_id)
    return token_ids


@pytest.mark.parametrize("num_blocks", [64, 12])
def test_depth_two_gives_the_same_ids(num_blocks: int) -> None:
    def fill(scheduler: Scheduler) -> Scheduler:
        for request_id in range(5):
            stop = frozenset({request_id + 9})
            scheduler.add(make_sequence(request_id, 5 + request_id, max_output_tokens=11, stop_token_ids=stop))
        return scheduler

    runner = CountingRunner()
    scheduler = fill(make_scheduler(num_blocks, max_step_tokens=9))
    assert depth_two(scheduler, runner) == run(fill(make_scheduler()))
    assert runner.max_in_flight == 2
    assert scheduler.pool.num_used == 0
    assert (scheduler.num_preemptions > 0) is (num_blocks == 12)


def test_row_without_blocks_is_next_and_nobody_is_let_in() -> None:
    """A long prompt in chunks is not overtaken for ever by short ones that fit."""
    scheduler, runner = make_scheduler(num_blocks=12, max_step_tokens=16), CountingRunner()
    scheduler.add(make_sequence(0, num_tokens=4, max_output_tokens=30))
    scheduler.add(make_sequence(1, num_tokens=40, max_output_tokens=2))
    for request_id in range(2, 30):
        scheduler.add(make_sequence(request_id, num_tokens=4, max_output_tokens=12))
    stalled = 0
    while step := scheduler.schedule():
        is_waiting = RowKey(1, 1) in scheduler.running and all(row.key != (1, 1) for row in step.rows)
        stalled = stalled + 1 if is_waiting else 0
        if stalled > 1:  # only for one that is older
            assert [row.key.request_id for row in step.rows] == [0]
        scheduler.commit(step, runner.sampled(runner.forward(step)))
    assert scheduler.pool.num_used == 0
