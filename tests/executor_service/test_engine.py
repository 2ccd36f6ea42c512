# SPDX-License-Identifier: Apache-2.0
"""The engine's loop on a device that answers later: the same ids at depth 2, two steps in flight, nothing stuck."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from executor_service.blocks import BlockPool
from executor_service.engine import EndRow, EndStream, Engine
from executor_service.scheduler import Scheduler
from executor_service.sequence import RowKey, Sequence
from executor_service.step import CANCELLED, Finish, RowOutput, Sampled, Step
from protos.errors import Unavailable
from tests.fixtures.sequences import CountingLaunch, CountingRunner, make_sequence


class DelayedRunner(CountingRunner):
    """A device with a queue of its own: a step's ids are there a while after its launch, and forward never waits."""

    delay_s = 0.002

    def forward(self, step: Step) -> CountingLaunch:
        launch = super().forward(step)
        launch.ready_s = time.monotonic() + self.delay_s  # type: ignore[attr-defined]
        return launch

    def sampled(self, launched: CountingLaunch) -> Sampled:
        time.sleep(max(0.0, launched.ready_s - time.monotonic()))  # type: ignore[attr-defined]
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


def make_engine(runner: Any, depth: int, num_blocks: int = 64) -> Engine:
    return Engine(Scheduler(BlockPool(num_blocks, 4), max_step_tokens=16, max_sequences=8), runner, depth)


def rows() -> list[Sequence]:
    stops = [frozenset[int](), frozenset({12}), frozenset({9})]
    return [make_sequence(i, 4 + 5 * i, max_output_tokens=10, stop_token_ids=stops[i % 3]) for i in range(7)]


@pytest.mark.parametrize("num_blocks", [64, 16])
def test_depth_two_on_a_delayed_device_gives_the_ids_of_depth_one(num_blocks: int) -> None:
    results = []
    for depth in (1, 2):
        runner, recorder = DelayedRunner(), Recorder()
        engine = make_engine(runner, depth, num_blocks)
        engine.start(recorder)
        engine.post(list(rows()))
        recorder.wait_for_outcomes(7)
        engine.stop(5)
        results.append((recorder.token_ids, recorder.outcomes))
        assert runner.max_in_flight == depth
        assert engine.scheduler.pool.num_used == 0
        assert (engine.scheduler.num_preemptions > 0) is (num_blocks == 16)
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
    deadline_s = time.monotonic() + 5
    while engine.scheduler.has_work and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert (engine.scheduler.pool.num_used, engine.num_queued, len(engine.scheduler.running)) == (0, 0, 0)
    engine.stop(5)


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
