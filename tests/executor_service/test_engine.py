# SPDX-License-Identifier: Apache-2.0
"""The engine's loop on a device that answers later: the same ids at depth 2, two steps in flight, nothing stuck."""

from __future__ import annotations

import threading
import time
from random import Random
from typing import Any

import numpy as np
import pytest

from executor_service.engine import EndRow, EndStream, Engine
from executor_service.scheduling.scheduler import Scheduler
from executor_service.scheduling.sequence import RowKey, Sequence
from executor_service.scheduling.step import CANCELLED, Cancelled, Finish, RowOutput, Sampled, Step
from protos.errors import Unavailable
from tests.fixtures.sequences import CountingLaunch, CountingRunner, make_cache, make_sequence


class DelayedRunner(CountingRunner):
    """A device with a queue of its own: a step's ids are there a while after its launch, and forward never waits."""

    delay_s = 0.002

    def forward(self, step: Step) -> CountingLaunch:
        launch = super().forward(step)
        launch.ready_s = time.monotonic() + self.delay_s
        return launch

    def sampled(self, launched: CountingLaunch) -> Sampled:
        time.sleep(max(0.0, launched.ready_s - time.monotonic()))
        return super().sampled(launched)


class Recorder:
    """What the engine tells, and a way to wait for it."""

    def __init__(self) -> None:
        self.token_ids: dict[RowKey, list[int]] = {}
        self.outcomes: dict[RowKey, Any] = {}
        self.changed = threading.Condition()

    def step_done(self, step: Step, seconds: float) -> None:
        pass

    def publish(self, outputs: list[RowOutput], step: int) -> None:
        with self.changed:
            for output in outputs:
                if output.token_id is not None:
                    self.token_ids.setdefault(output.key, []).append(output.token_id)
                if output.outcome:
                    assert output.key not in self.outcomes, "a row ended twice"
                    self.outcomes[output.key] = output.outcome
            self.changed.notify_all()

    def wait_for_outcomes(self, number: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.outcomes) == number, timeout=20)


def make_engine(
    runner: Any, depth: int, num_blocks: int = 64, block_tokens: int = 4, max_step_tokens: int = 16
) -> Engine:
    return Engine(Scheduler(make_cache(num_blocks, block_tokens), max_step_tokens, max_sequences=8), runner, depth)


def wait_until_idle(engine: Engine) -> None:
    deadline_s = time.monotonic() + 5
    while engine.scheduler.has_work and time.monotonic() < deadline_s:
        time.sleep(0.001)
    scheduler = engine.scheduler
    assert (scheduler.num_used_blocks, engine.num_queued, len(scheduler.running)) == (0, 0, 0)
    scheduler.cache.check([])


def rows() -> list[Sequence]:
    """None has a prefix of another."""
    return [row(i, 100 * i, 4 + 5 * i, stop_after=[99, 18, 12][i % 3]) for i in range(7)]


def row(request_id: int, first: int, num_tokens: int, stop_after: int) -> Sequence:
    last = first + num_tokens - 1
    return make_sequence(
        request_id,
        token_ids=np.arange(first, last + 1, dtype=np.int32),
        max_output_tokens=20,
        stop_token_ids=frozenset({last + stop_after}),
    )


@pytest.mark.parametrize("num_blocks", [64, 14])
def test_depth_two_on_a_delayed_device_gives_the_ids_of_depth_one(num_blocks: int) -> None:
    results = []
    for depth in (1, 2):
        runner, recorder = DelayedRunner(), Recorder()
        engine = make_engine(runner, depth, num_blocks)
        engine.start(recorder)
        engine.post(list(rows()))
        recorder.wait_for_outcomes(7)
        wait_until_idle(engine)
        engine.stop(5)
        results.append((recorder.token_ids, recorder.outcomes))
        assert runner.max_in_flight == depth
        assert (engine.scheduler.num_preemptions > 0) is (num_blocks == 14)
    assert results[0] == results[1]


@pytest.mark.parametrize("depth", [1, 2])
def test_cancelled_at_every_stage_leaves_nothing(depth: int) -> None:
    runner, recorder = DelayedRunner(), Recorder()
    engine = make_engine(runner, depth)
    engine.start(recorder)
    for i in range(60):
        engine.post([make_sequence(i, 4 + i % 40, max_output_tokens=30)])
        time.sleep(0.0005 * (i % 7))
        engine.post([EndRow(RowKey(1, i), CANCELLED)])
    recorder.wait_for_outcomes(60)
    wait_until_idle(engine)
    engine.stop(5)


@pytest.mark.parametrize("depth", [1, 2])
def test_small_pool_serves_many_with_cancels(depth: int) -> None:
    """8 blocks of 16 tokens, chunks of 32, 64 rows, some of them cancelled: nothing is lost or comes twice."""
    random = Random(depth)
    runner, recorder = DelayedRunner(), Recorder()
    runner.delay_s = 0.0002
    engine = make_engine(runner, depth, num_blocks=8, block_tokens=16, max_step_tokens=32)
    sequences = [mixed_row(random, i) for i in range(64)]
    engine.start(recorder)
    for sequence in sequences:
        engine.post([sequence])
        if random.random() < 0.3:
            time.sleep(random.random() * 0.004)
            engine.post([EndRow(RowKey(1, random.randrange(64)), CANCELLED)])
    recorder.wait_for_outcomes(64)
    wait_until_idle(engine)
    engine.stop(5)
    assert engine.scheduler.num_preemptions > 0
    for sequence in sequences:
        first = int(sequence.token_ids[sequence.num_prompt_tokens - 1]) + 1
        token_ids = recorder.token_ids.get(sequence.key, [])
        assert token_ids == list(range(first, first + len(token_ids)))
        if not isinstance(recorder.outcomes[sequence.key], Cancelled):
            assert len(token_ids) == sequence.max_output_tokens


def mixed_row(random: Random, request_id: int) -> Sequence:
    """Short and long, half of them with a prefix in common; 128 tokens at most."""
    first = random.choice([0, 100, 200, request_id])
    num_tokens = random.choice([3, 17, 40, 64])
    return make_sequence(
        request_id,
        token_ids=np.arange(first, first + num_tokens, dtype=np.int32),
        max_output_tokens=random.choice([1, 8, 40, 64]),
        priority=random.choice([0, 0, 0, 1]),
    )


def test_stream_end_is_silent_and_leaves_others() -> None:
    recorder = Recorder()
    engine = make_engine(DelayedRunner(), 1)
    engine.start(recorder)
    engine.post([make_sequence(1, max_output_tokens=2000), make_sequence(1, stream_id=2, max_output_tokens=40)])
    engine.post([EndStream(1)])
    recorder.wait_for_outcomes(1)
    assert isinstance(recorder.outcomes[RowKey(2, 1)], Finish)
    engine.stop(5)


def test_stopped_engine_takes_nothing_more() -> None:
    engine = make_engine(CountingRunner(), 1)
    engine.start(Recorder())
    engine.stop(5)
    with pytest.raises(Unavailable, match="the engine has stopped: shutting down"):
        engine.post([make_sequence()])


def test_hung_step_is_not_healthy_and_a_long_one_is() -> None:
    class HangingRunner(CountingRunner):
        release = threading.Event()

        def forward(self, step: Step) -> CountingLaunch:
            self.release.wait(10)
            return super().forward(step)

    recorder = Recorder()
    engine = make_engine(HangingRunner(), 1)
    engine.start(recorder)
    engine.post([make_sequence()])
    time.sleep(0.3)
    assert not engine.can_serve(stuck_after_s=0.2)
    assert engine.can_serve(stuck_after_s=60)
    HangingRunner.release.set()
    recorder.wait_for_outcomes(1)
    assert engine.can_serve(stuck_after_s=0.2)
    engine.stop(5)


def test_rows_that_none_can_run_are_answered_and_the_engine_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner that finds nothing to do, by a mistake of ours, must not leave callers waiting or stop the others."""
    recorder = Recorder()
    engine = make_engine(CountingRunner(), 1)
    monkeypatch.setattr(engine.scheduler, "schedule", lambda: None)
    engine.start(recorder)
    engine.post([make_sequence(1)])
    recorder.wait_for_outcomes(1)
    assert str(recorder.outcomes[RowKey(1, 1)]) == "internal error"
    monkeypatch.undo()
    engine.post([make_sequence(2)])
    recorder.wait_for_outcomes(2)
    assert isinstance(recorder.outcomes[RowKey(1, 2)], Finish)
    assert engine.error is None
    engine.stop(5)
