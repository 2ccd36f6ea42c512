# SPDX-License-Identifier: Apache-2.0
"""The streams that are open, and what they share: the engine, the door, the grammars, the bounds.

Hands the engine's news to the streams they belong to. Does not know how a step runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from executor_service.engine import Engine
from executor_service.grammar.grammars import Grammars
from executor_service.scheduling.sequence import Grammar, Sequence
from executor_service.scheduling.step import RowOutput
from executor_service.wire.admission import Admission
from executor_service.wire.stream import Stream
from protos.errors import LimitReached, Unavailable
from protos.packserve.v1 import executor_pb2, sampling_pb2


class Streams:
    """publish() is called by the engine's thread, everything else on the event loop."""

    def __init__(self, engine: Engine, admission: Admission, grammars: Grammars, max_queued: int) -> None:
        self.engine = engine
        self.admission = admission
        self.grammars = grammars
        self.max_queued = max_queued
        self.is_draining = False
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, Stream] = {}
        self._numbers = count(1)

    @contextmanager
    def open(self, end_call: Callable[[], object]) -> Iterator[Stream]:
        """end_call: ends the call of a stream whose reader is gone. Rows still open end with the stream.

        Raises Unavailable where the engine takes none.
        """
        if not self.engine.is_warm or self.engine.error:
            raise Unavailable("the model is loading" if not self.engine.error else "the engine has stopped")
        stream = Stream(next(self._numbers), self, end_call)
        self._streams[stream.id] = stream
        try:
            yield stream
        finally:
            del self._streams[stream.id]
            stream.close()

    def drain(self) -> None:
        """No new rows; a stream ends when its open rows have."""
        self.is_draining = True
        for stream in self._streams.values():
            stream.close_if_done()

    def check_room(self, num_before: int) -> None:
        if self.is_draining:
            raise Unavailable("the executor is draining")
        num_queued = self.num_queued + num_before
        if num_queued >= self.max_queued:
            raise LimitReached(f"{num_queued} rows wait already, the limit is {self.max_queued}")

    @property
    def num_queued(self) -> int:
        """Rows not yet running, those that wait for a grammar included."""
        return self.engine.num_queued + sum(len(stream.constrained) for stream in self._streams.values())

    async def grammar(self, sequence: Sequence, constraint: sampling_pb2.Constraint) -> Grammar:
        return await self.grammars.get(constraint, sequence.stop_token_ids, sequence.known_output)

    def load(self) -> executor_pb2.Load:
        scheduler = self.engine.scheduler
        return executor_pb2.Load(
            num_running=len(scheduler.running),
            num_waiting=self.num_queued,
            num_free_blocks=scheduler.num_free_blocks,
            num_blocks=scheduler.num_blocks,
            is_draining=self.is_draining,
            step_age_ms=int(self.engine.step_age_s * 1000),
        )

    def publish(self, outputs: list[RowOutput], step: int) -> None:
        """One entry for each stream that has news, one wake-up of the event loop for all of them."""
        news: dict[int, list[RowOutput]] = {}
        for output in outputs:
            news.setdefault(output.key.stream_id, []).append(output)
        woken = []
        for stream_id, stream_outputs in news.items():
            if stream := self._streams.get(stream_id):
                stream.outbox.put(step, stream_outputs)
                woken.append(stream)
        self._loop.call_soon_threadsafe(_wake, woken)


def _wake(streams: list[Stream]) -> None:
    for stream in streams:
        stream.wake()
