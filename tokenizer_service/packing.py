# SPDX-License-Identifier: Apache-2.0
"""Rows and cancellations that wait, packed into as few messages as their size allows: nearly always one.

A row too long for what is left of a message continues in the next. Does not know who sends them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from protos.batch import WIRE_DTYPE, Int32Array, TokenBatch
from protos.packserve.v1 import executor_pb2
from protos.server import MAX_MESSAGE_BYTES, MAX_ROWS_PER_MESSAGE

# Of a row beside its ids and its Row: request id, offset, tags and lengths.
ROW_OVERHEAD_BYTES = 32
CANCELLATION_BYTES = 10
# Tags and lengths of the message itself.
MESSAGE_OVERHEAD_BYTES = 1024
# Of a row beside its ids: some of them always fit beside it.
MAX_ROW_BYTES = MAX_MESSAGE_BYTES // 2

PackedRow = tuple[int, Int32Array, executor_pb2.Row]

CONTINUES = executor_pb2.Row(continues=True)


@dataclass(slots=True)
class _Message:
    cancelled: list[int] = field(default_factory=list)
    rows: list[PackedRow] = field(default_factory=list)
    num_bytes: int = MESSAGE_OVERHEAD_BYTES

    def add(self, request_id: int, token_ids: Int32Array, row: executor_pb2.Row) -> None:
        self.rows.append((request_id, token_ids, row))
        self.num_bytes += row.ByteSize() + ROW_OVERHEAD_BYTES + len(token_ids) * WIRE_DTYPE.itemsize

    def to_wire(self) -> executor_pb2.ExecuteRequest:
        if not self.rows:
            return executor_pb2.ExecuteRequest(cancelled_request_ids=self.cancelled)
        request_ids, token_ids, rows = zip(*self.rows, strict=True)
        batch = TokenBatch.pack(request_ids, token_ids).to_wire()
        return executor_pb2.ExecuteRequest(batch=batch, rows=rows, cancelled_request_ids=self.cancelled)


def pack_requests(
    rows: Iterable[PackedRow], cancelled: list[int], max_bytes: int = MAX_MESSAGE_BYTES
) -> Iterator[executor_pb2.ExecuteRequest]:
    """No message is larger than max_bytes. A row's own fields, at most half of that, stay together; ids are split."""
    message = _Message()
    for first in range(0, len(cancelled), MAX_ROWS_PER_MESSAGE):
        if message.cancelled:
            yield message.to_wire()
        message = _Message(cancelled[first : first + MAX_ROWS_PER_MESSAGE])
    message.num_bytes += CANCELLATION_BYTES * len(message.cancelled)
    for request_id, token_ids, row in rows:
        if len(message.rows) == MAX_ROWS_PER_MESSAGE:
            yield message.to_wire()
            message = _Message()
        while len(token_ids) > (room := _room(message, row, max_bytes)):
            assert room > 0 or message.rows or message.cancelled, "a row's own fields fill a message"
            if room > 0:
                message.add(request_id, token_ids[:room], CONTINUES)
                token_ids = token_ids[room:]
            yield message.to_wire()
            message = _Message()
        message.add(request_id, token_ids, row)
    if message.rows or message.cancelled:
        yield message.to_wire()


def _room(message: _Message, row: executor_pb2.Row, max_bytes: int) -> int:
    """How many of the row's ids fit."""
    return (max_bytes - message.num_bytes - ROW_OVERHEAD_BYTES - row.ByteSize()) // WIRE_DTYPE.itemsize
