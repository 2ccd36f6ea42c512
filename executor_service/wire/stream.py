# SPDX-License-Identifier: Apache-2.0
"""One tokenizer's stream: rows and cancellations in, step outputs out.

Knows the wire's messages and the engine's inbox. Does not know the other streams, nor how a step runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from executor_service.engine import EndRow, EndStream
from executor_service.scheduling.sequence import RowKey, Sequence
from executor_service.scheduling.step import CANCELLED, Outcome, RowOutput
from executor_service.wire.constrained_rows import ConstrainedRows
from executor_service.wire.messages import step_outputs
from executor_service.wire.outbox import Outbox
from executor_service.wire.row_parts import RowParts
from protos.batch import Int32Array, TokenBatch
from protos.errors import InvalidRequest, LimitReached, PackserveError, Unavailable
from protos.packserve.v1 import executor_pb2
from protos.server import MAX_ROWS_PER_MESSAGE

if TYPE_CHECKING:
    from executor_service.wire.streams import Streams

log = logging.getLogger(__name__)

# For a reader that fell too far behind to take the error that ends its stream.
LAST_WORDS_S = 1.0


class Stream:
    """Lives as long as its call. Every row it takes gets exactly one terminal, unless the stream itself ends."""

    def __init__(self, stream_id: int, streams: Streams, end_call: Callable[[], object]) -> None:
        self.id = stream_id
        self.outbox = Outbox()
        self.open_request_ids: set[int] = set()
        self._streams = streams
        self._end_call = end_call
        self._ending: asyncio.TimerHandle | None = None
        self._parts = RowParts(streams.admission.max_context_tokens)
        self.constrained = ConstrainedRows(self._post_constrained)
        self._is_half_closed = False

    # ---- up

    def receive(self, request: executor_pb2.ExecuteRequest) -> None:
        """New rows and cancellations go to the engine's inbox; a row that is refused is answered at once."""
        if request.HasField("hello"):
            raise InvalidRequest("hello came again: it is the first request of a stream")
        _check_size(request)
        sequences: list[Sequence] = []
        ends: list[EndRow] = []
        refused: list[RowOutput] = []
        for request_id, token_ids, row in self._rows(request, refused):
            try:
                if request_id in self.open_request_ids:
                    # Both would be answered under one id: neither can be.
                    raise InvalidRequest(f"request_ids: {request_id} is open already in this stream")
                if (sequence := self._admit(request_id, token_ids, row, len(sequences))) is not None:
                    self.open_request_ids.add(request_id)
                    self._start(sequence, row, sequences)
            except PackserveError as error:
                self._parts.refuse(request_id, row.continues)
                self._refuse(RowKey(self.id, request_id), error, ends, refused)
        for request_id in request.cancelled_request_ids:
            if self._parts.drop(request_id):
                refused.append(RowOutput(RowKey(self.id, request_id), outcome=CANCELLED))
            elif request_id in self.open_request_ids:
                self._end(RowKey(self.id, request_id), CANCELLED, ends, refused)
        self._post(sequences, ends, refused)

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
            for request_id in fresh:
                self._parts.drop(request_id)
            refused.extend(RowOutput(RowKey(self.id, request_id), outcome=error) for request_id in fresh)
            return []
        return [(request_id, ids, row) for (request_id, ids), row in zip(batch, request.rows, strict=True)]

    def _admit(self, request_id: int, token_ids: Int32Array, row: executor_pb2.Row, num_before: int) -> Sequence | None:
        """None where more of the row is to come, or all of it was refused before."""
        if self._parts.is_refused(request_id, row.continues):
            return None
        self._streams.check_room(num_before + len(self._parts))
        whole = self._parts.join(request_id, token_ids, row.continues)
        if whole is None:
            return None
        log.debug("stream %d, row %d: request %r", self.id, request_id, row.caller_request_id)
        return self._streams.admission.admit(RowKey(self.id, request_id), whole, row)

    def _start(self, sequence: Sequence, row: executor_pb2.Row, sequences: list[Sequence]) -> None:
        """Its turn at the engine comes at once, or when its grammar is compiled."""
        if row.sampling.HasField("constraint"):
            self.constrained.start(sequence, self._streams.grammar(sequence, row.sampling.constraint))
        else:
            sequences.append(sequence)

    def _post_constrained(self, sequence: Sequence, error: PackserveError | None) -> None:
        if error is None:
            self._post([sequence], [], [])
        else:
            self._post([], [], [RowOutput(sequence.key, outcome=error)])

    def _refuse(self, key: RowKey, error: PackserveError, ends: list[EndRow], refused: list[RowOutput]) -> None:
        if key.request_id in self.open_request_ids:
            self._end(key, error, ends, refused)
        else:
            refused.append(RowOutput(key, outcome=error))

    def _end(self, key: RowKey, outcome: Outcome, ends: list[EndRow], refused: list[RowOutput]) -> None:
        """A row that the engine has gets its one terminal from there."""
        if self.constrained.drop(key.request_id):
            refused.append(RowOutput(key, outcome=outcome))
        else:
            ends.append(EndRow(key, outcome))

    def _post(self, sequences: list[Sequence], ends: list[EndRow], refused: list[RowOutput]) -> None:
        try:
            self._streams.engine.post([*sequences, *ends])
        except Unavailable as error:
            refused += [RowOutput(sequence.key, outcome=error) for sequence in sequences]
        if refused:
            self.outbox.put(0, refused)
            self.wake()

    def half_close(self) -> None:
        """No more rows will come; the open ones are answered to their end."""
        self._is_half_closed = True
        unfinished = [RowOutput(RowKey(self.id, i), outcome=CANCELLED) for i in self._parts.drop_all()]
        if unfinished:
            self.outbox.put(0, unfinished)
            self.wake()
        self.close_if_done()

    # ---- down

    def wake(self) -> None:
        """There is news. Where it became too much, the rows end now, the call soon even if nobody reads its error."""
        self.outbox.wake()
        if self.outbox.is_full and self._ending is None:
            self._ending = asyncio.get_running_loop().call_later(LAST_WORDS_S, self._end_call)
            self.end_rows()

    def end_rows(self) -> None:
        self.constrained.close()
        with suppress(Unavailable):  # an engine that has stopped has ended them already
            self._streams.engine.post([EndStream(self.id)])

    def close(self) -> None:
        self.end_rows()
        if self._ending:
            self._ending.cancel()

    async def responses(self) -> AsyncIterator[executor_pb2.ExecuteResponse]:
        async for news in self.outbox.steps():
            if news is None:
                yield executor_pb2.ExecuteResponse(load=self._streams.load())
            else:
                step, outputs = news
                self.open_request_ids.difference_update(o.key.request_id for o in outputs if o.outcome is not None)
                for message in step_outputs(step, outputs):
                    yield executor_pb2.ExecuteResponse(step=message, load=self._streams.load())
            self.close_if_done()

    def close_if_done(self) -> None:
        """Half-closed or draining, and every row answered."""
        if (self._is_half_closed or self._streams.is_draining) and not self.open_request_ids and not self._parts:
            self.outbox.close()


def _check_size(request: executor_pb2.ExecuteRequest) -> None:
    """One message must not keep the event loop from the other streams for long."""
    for name, number in (
        ("rows", max(len(request.rows), len(request.batch.request_ids))),
        ("cancelled_request_ids", len(request.cancelled_request_ids)),
    ):
        if number > MAX_ROWS_PER_MESSAGE:
            raise LimitReached(f"{name} has {number} entries, a request takes {MAX_ROWS_PER_MESSAGE}")
