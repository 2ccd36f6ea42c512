# SPDX-License-Identifier: Apache-2.0
"""The loop that owns the device: what came in, one step, what came out.

One thread. Others reach it by an inbox that is read once a step. Does not know the wire.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Protocol

from executor_service.device.runner import Launched
from executor_service.scheduling.scheduler import Scheduler
from executor_service.scheduling.sequence import RowKey, Sequence
from executor_service.scheduling.step import Limits, Outcome, RowOutput, Sampled, Step
from protos.errors import PackserveError, Unavailable

log = logging.getLogger(__name__)


class Runner(Protocol):
    """forward and sample put work on the device's queue; sampled waits for it."""

    def forward(self, step: Step) -> Launched: ...
    def sample(self, launched: Launched, limits: list[Limits | None]) -> None:
        """limits: of each row that samples. The ids stay on the device: the next forward reads them there."""

    def sampled(self, launched: Launched) -> Sampled: ...
    def warm_up(self, max_step_tokens: int) -> None: ...


class Observer(Protocol):
    """Is told, on the engine's thread, of every step and all news."""

    def step_done(self, step: Step, seconds: float) -> None: ...
    def publish(self, outputs: list[RowOutput], step: int) -> None: ...


@dataclass(slots=True)
class Flight:
    """A step on the device."""

    step: Step
    launched: Launched
    started_s: float
    is_sampled: bool = False


@dataclass(frozen=True, slots=True)
class EndRow:
    key: RowKey
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class EndStream:
    stream_id: int


Message = Sequence | EndRow | EndStream


class Engine:
    """depth: how many steps are on the device at once; 2 hides the host's work where the device runs apart."""

    def __init__(self, scheduler: Scheduler, runner: Runner, depth: int = 1) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.depth = depth
        self.is_warm = False
        self.error: Exception | None = None
        self._observer: Observer
        self._last_step_end_s = 0.0
        self._in_flight: deque[Flight] = deque()
        self._inbox: list[Message] = []
        self._num_posted_rows = 0
        self._is_stopping = False
        self._condition = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # ---- for other threads

    def start(self, observer: Observer) -> None:
        self._observer = observer
        self._thread.start()

    def post(self, messages: Iterable[Message]) -> None:
        """Read before the next step. Raises Unavailable where there will be none."""
        with self._condition:
            if self.error or self._is_stopping:
                raise Unavailable(f"the engine has stopped: {'see its log' if self.error else 'shutting down'}")
            before = len(self._inbox)
            self._inbox.extend(messages)
            self._num_posted_rows += sum(isinstance(message, Sequence) for message in self._inbox[before:])
            self._condition.notify()

    def stop(self, timeout_s: float) -> None:
        """Ends after the step that runs now; rows still open get no further news."""
        with self._condition:
            self._is_stopping = True
            self._condition.notify()
        self._thread.join(timeout_s)

    @property
    def num_queued(self) -> int:
        """Rows not yet running, those in the inbox included."""
        return len(self.scheduler.waiting) + self._num_posted_rows

    def can_serve(self, stuck_after_s: float) -> bool:
        """False before the warm-up, after a failure, and while a step lasts longer than any legal one."""
        return self.is_warm and self.error is None and self.step_age_s < stuck_after_s

    @property
    def step_age_s(self) -> float:
        """Since the last step ended, or work came to an idle engine; 0 while there is none."""
        return monotonic() - self._last_step_end_s if self.scheduler.has_work else 0.0

    # ---- the engine's own thread

    def _run(self) -> None:
        try:
            self.runner.warm_up(self.scheduler.max_step_tokens)
            self.is_warm = True
            while self._wait_for_work():
                self._publish(self._take_inbox() + self.scheduler.expire(monotonic()))
                self._step()
        except Exception as error:
            log.exception("the engine has stopped")
            self._fail(error)

    def _wait_for_work(self) -> bool:
        with self._condition:
            self._condition.wait_for(lambda: self._inbox or self._is_stopping or self.scheduler.has_work)
            return not self._is_stopping

    def _take_inbox(self) -> list[RowOutput]:
        if not self.scheduler.has_work:
            self._last_step_end_s = monotonic()
        messages = self._empty_inbox()
        outputs: list[RowOutput] = []
        for message in messages:
            match message:
                case Sequence():
                    self.scheduler.add(message)
                case EndRow(key, outcome):
                    outputs += self.scheduler.end(key, outcome)
                case EndStream(stream_id):
                    self.scheduler.cancel_stream(stream_id)
        return outputs

    def _empty_inbox(self) -> list[Message]:
        with self._condition:
            messages, self._inbox, self._num_posted_rows = self._inbox, [], 0
        return messages

    def _step(self) -> None:
        step = self.scheduler.schedule()
        if step:
            started_s = monotonic()
            self._in_flight.append(Flight(step, self.runner.forward(step), started_s))
        elif not self._in_flight and self.scheduler.sequences:
            self._end_stuck()
        self._sample()
        # With nothing to launch the queue drains; its ids may be what the next step waits for.
        if self._in_flight and (step is None or len(self._in_flight) == self.depth):
            self._commit()
            self._sample()

    def _end_stuck(self) -> None:
        """Our own mistake: what was let in can run. Those who wait get an answer, and the engine goes on."""
        log.error("%d sequences are open and none can run: they end", len(self.scheduler.sequences))
        self._publish(self.scheduler.fail_all(PackserveError("internal error")))

    def _sample(self) -> None:
        """Of the oldest step: all ids before it are known here, which is what a grammar needs."""
        if self._in_flight and not (flight := self._in_flight[0]).is_sampled:
            self.runner.sample(flight.launched, self.scheduler.limits(flight.step))
            flight.is_sampled = True

    def _commit(self) -> None:
        flight = self._in_flight.popleft()
        outputs = self.scheduler.commit(flight.step, self.runner.sampled(flight.launched))
        self._last_step_end_s = monotonic()
        self._observer.step_done(flight.step, self._last_step_end_s - flight.started_s)
        self._publish(outputs, flight.step.number)

    def _publish(self, outputs: list[RowOutput], step: int = 0) -> None:
        if outputs:
            self._observer.publish(outputs, step or self.scheduler.num_steps)

    def _fail(self, error: Exception) -> None:
        with self._condition:
            self.error = error
        for message in self._empty_inbox():
            if isinstance(message, Sequence):
                self.scheduler.add(message)
        self._publish(self.scheduler.fail_all(Unavailable("the engine has stopped; see the executor's log")))
