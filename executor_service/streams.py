# SPDX-License-Identifier: Apache-2.0
"""One tokenizer's stream: rows and cancellations in, step outputs out; and the set of all streams that are open.

Knows the wire's messages and the engine's inbox. Does not know how a step runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count

import numpy as np

from executor_service.admission import Admission
from executor_service.engine import EndRow, EndStream, Engine, Message
from executor_service.messages import step_output
from executor_service.outbox import Outbox
from executor_service.sequence import RowKey, Sequence
from executor_service.step import CANCELLED, RowOutput
from protos.batch import Int32Array, TokenBatch
from protos.errors import InvalidRequest, LimitReached, PackserveError, PromptTooLong, Unavailable
from protos.packserve.v1 import executor_pb2

log = logging.getLogger(__name__)


class Stream:
    """Lives as long as its call. Every row it takes gets exactly one terminal, unless the stream itself ends."""

    def __init__(self, stream_id: int, streams: Streams, end_call: Callable[[], object]) -> None:
        self.id = stream_id
        self.outbox = Outbox()
        self.open_request_ids: set[int] = set()
        self._streams = streams
        self._end_call = end_call
        self._parts: dict[int, list[Int32Array]] = {}
        self._is_half_closed = False

    # ---- up

    def receive(self, request: executor_pb2.ExecuteRequest) -> None:
        """New rows and cancellations go to the engine's inbox; a row that is refused is answered at once."""
        messages: list[Message] = []
        refused: list[RowOutput] = []
        for request_id, token_ids, row in self._rows(request, refused):
            try:
                messages += self._admit(request_id, token_ids, row, num_before=len(messages))
            except PackserveError as error:
                self._parts.pop(request_id, None)
                refused.append(RowOutput(RowKey(self.id, request_id), outcome=error))
        for request_id in request.cancelled_request_ids:
            key = RowKey(self.id, request_id)
            if self._parts.pop(request_id, None):
                refused.append(RowOutput(key, outcome=CANCELLED))
            else:
                messages.append(EndRow(key, CANCELLED))
        try:
            self._streams.engine.post(messages)
        except Unavailable as error:
            refused += [RowOutput(m.key, outcome=error) for m in messages if isinstance(m, Sequence)]
        if refused:
            self.outbox.put(0, refused)
            self.wake()

    def _rows(
        self, request: executor_pb2.ExecuteRequest, refused: list[RowOutput]
    ) -> list[tuple[int, Int32Array, executor_pb2.Row]]:
        """A batch that contradicts itself has no rows to tell apart: each of its requests is refused."""
        try:
            batch = TokenBatch.from_wire(request.batch)
            if len(batch) != len(request.rows):
                raise InvalidRequest(f"rows has {len(request.rows)} entries, the batch has {len(batch)}")
        except InvalidRequest as error:
            fresh = set(request.batch.request_ids) - self.open_request_ids
            refused.extend(RowOutput(RowKey(self.id, request_id), outcome=error) for request_id in fresh)
            return []
        return [(request_id, ids, row) for (request_id, ids), row in zip(batch, request.rows, strict=True)]

    def _admit(self, request_id: int, token_ids: Int32Array, row: executor_pb2.Row, num_before: int) -> list[Message]:
        """num_before: how many messages of this request are on their way to the engine already."""
        key = RowKey(self.id, request_id)
        if request_id in self.open_request_ids:
            # Both would be answered under one id: neither can be.
            return [EndRow(key, InvalidRequest(f"request_ids: {request_id} is open already in this stream"))]
        self._streams.check_room(num_before)
        if row.continues:
            self._keep_part(request_id, token_ids)
            return []
        parts = self._parts.pop(request_id, [])
        sequence = self._streams.admission.admit(key, np.concatenate([*parts, token_ids]), row)
        self.open_request_ids.add(request_id)
        log.debug("stream %d, row %d: request %r", self.id, request_id, row.caller_request_id)
        return [sequence]

    def _keep_part(self, request_id: int, token_ids: Int32Array) -> None:
        parts = self._parts.setdefault(request_id, [])
        parts.append(token_ids.copy())
        num_tokens, limit = sum(len(part) for part in parts), self._streams.admission.max_context_tokens
        if num_tokens >= limit:
            raise PromptTooLong(f"the row has {num_tokens} tokens so far, the context is {limit}")

    def half_close(self) -> None:
        """No more rows will come; the open ones are answered to their end."""
        self._is_half_closed = True
        self.close_if_done()

    # ---- down

    def wake(self) -> None:
        self.outbox.wake()
        if self.outbox.is_full:
            self._end_call()

    async def responses(self) -> AsyncIterator[executor_pb2.ExecuteResponse]:
        async for news in self.outbox.steps():
            response = executor_pb2.ExecuteResponse(load=self._streams.load())
            if news:
                step, outputs = news
                self.open_request_ids.difference_update(o.key.request_id for o in outputs if o.outcome is not None)
                response.step.CopyFrom(step_output(step, outputs))
            yield response
            self.close_if_done()

    def close_if_done(self) -> None:
        """Half-closed or draining, and every row answered."""
        if (self._is_half_closed or self._streams.is_draining) and not self.open_request_ids:
            self.outbox.close()


class Streams:
    """All open streams. publish() is called by the engine's thread, everything else on the event loop."""

    def __init__(self, engine: Engine, admission: Admission, max_queued: int) -> None:
        self.engine = engine
        self.admission = admission
        self.max_queued = max_queued
        self.is_draining = False
        self._loop = asyncio.get_running_loop()
        self._streams: dict[int, Stream] = {}
        self._numbers = count(1)

    @contextmanager
    def open(self, end_call: Callable[[], object]) -> Iterator[Stream]:
        """end_call: ends the call of a stream whose reader fell too far behind. Rows still open end with the stream."""
        stream = Stream(next(self._numbers), self, end_call)
        self._streams[stream.id] = stream
        try:
            yield stream
        finally:
            del self._streams[stream.id]
            with suppress(Unavailable):  # an engine that has stopped has ended them already
                self.engine.post([EndStream(stream.id)])

    def drain(self) -> None:
        """No new rows; a stream ends when its open rows have."""
        self.is_draining = True
        for stream in self._streams.values():
            stream.close_if_done()

    def check_room(self, num_before: int) -> None:
        if self.is_draining:
            raise Unavailable("the executor is draining")
        num_queued = self.engine.num_queued + num_before
        if num_queued >= self.max_queued:
            raise LimitReached(f"{num_queued} rows wait already, the limit is {self.max_queued}")

    def load(self) -> executor_pb2.Load:
        scheduler = self.engine.scheduler
        return executor_pb2.Load(
            num_running=len(scheduler.running),
            num_waiting=self.engine.num_queued,
            num_free_blocks=scheduler.pool.num_free,
            num_blocks=scheduler.pool.num_blocks,
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
