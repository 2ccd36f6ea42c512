# SPDX-License-Identifier: Apache-2.0
"""What waits leaves as one message, unless that would be too large."""

from __future__ import annotations

import numpy as np

from protos.batch import Int32Array, TokenBatch
from protos.packserve.v1 import executor_pb2
from tokenizer_service.packing import MESSAGE_OVERHEAD_BYTES, pack_requests

ROW = executor_pb2.Row(caller_request_id="x")


def ids(n: int) -> Int32Array:
    return np.arange(n, dtype=np.int32)


def joined(messages: list[executor_pb2.ExecuteRequest]) -> dict[int, list[int]]:
    """Each request's ids over all messages."""
    rows: dict[int, list[int]] = {}
    for message in messages:
        for request_id, token_ids in TokenBatch.from_wire(message.batch):
            rows.setdefault(request_id, []).extend(token_ids.tolist())
    return rows


def test_everything_that_waits_is_one_message() -> None:
    (message,) = pack_requests([(1, ids(3), ROW), (2, ids(0), ROW), (3, ids(2), ROW)], [7, 8])
    assert message.batch.request_ids == [1, 2, 3]
    assert message.batch.offsets == [0, 3, 3, 5]
    assert message.rows == [ROW] * 3
    assert message.cancelled_request_ids == [7, 8]


def test_nothing_waiting_is_no_message() -> None:
    assert list(pack_requests([], [])) == []


def test_cancellations_alone_are_a_message() -> None:
    (message,) = pack_requests([], [5])
    assert message == executor_pb2.ExecuteRequest(cancelled_request_ids=[5])


def test_rows_that_do_not_fit_are_spread_over_bounded_messages() -> None:
    limit = MESSAGE_OVERHEAD_BYTES + 500
    rows = [(i, ids(40 + i), ROW) for i in range(9)]
    messages = list(pack_requests(rows, [], limit))
    assert len(messages) > 2
    assert all(message.ByteSize() <= limit for message in messages)
    assert joined(messages) == {i: token_ids.tolist() for i, token_ids, _ in rows}


def test_long_row_continues_and_its_fields_come_with_the_last_part() -> None:
    messages = list(pack_requests([(4, ids(1000), ROW)], [], MESSAGE_OVERHEAD_BYTES + 500))
    parts = [row for message in messages for row in message.rows]
    assert len(parts) > 2
    assert parts[-1] == ROW
    assert all(part == executor_pb2.Row(continues=True) for part in parts[:-1])
    assert joined(messages) == {4: ids(1000).tolist()}
