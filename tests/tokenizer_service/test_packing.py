# SPDX-License-Identifier: Apache-2.0
"""What waits leaves as one message, unless that would be too large."""

from __future__ import annotations

import numpy as np
import pytest

from protos.batch import Int32Array, TokenBatch
from protos.packserve.v1 import executor_pb2
from protos.server import MAX_MESSAGE_BYTES, MAX_ROWS_PER_MESSAGE
from tokenizer_service.packing import MAX_ROW_BYTES, MESSAGE_OVERHEAD_BYTES, pack_requests

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


@pytest.mark.parametrize("row_bytes", [2**17, MAX_ROW_BYTES - 100, MAX_ROW_BYTES])
def test_rows_with_large_parameters_are_spread_over_bounded_messages(row_bytes: int) -> None:
    """As many choices of one schema have, or a row near the limit, with few ids and with many."""
    row = executor_pb2.Row(cache_salt=bytes(row_bytes - 5))
    assert row_bytes - 5 < row.ByteSize() <= row_bytes
    rows = [(i, ids(num_ids), row) for i, num_ids in enumerate([1, 0, 600_000, 1, 1_200_000])]
    messages = list(pack_requests(rows, []))
    assert max(message.ByteSize() for message in messages) <= MAX_MESSAGE_BYTES
    assert [part for message in messages for part in message.rows if not part.continues] == [row] * 5
    assert {i: len(token_ids) for i, token_ids in joined(messages).items()} == {
        i: len(token_ids) for i, token_ids, _ in rows
    }


def test_many_cancellations_take_several_messages() -> None:
    """An executor ends the stream at a message of more."""
    cancelled = list(range(2 * MAX_ROWS_PER_MESSAGE + 1))
    messages = list(pack_requests([(7, ids(1), ROW)], cancelled))
    assert [len(message.cancelled_request_ids) for message in messages] == [MAX_ROWS_PER_MESSAGE] * 2 + [1]
    assert [i for message in messages for i in message.cancelled_request_ids] == cancelled
    assert [len(message.rows) for message in messages] == [0, 0, 1]
