# SPDX-License-Identifier: Apache-2.0
"""What a row holds for a call that is slow to take it."""

from __future__ import annotations

import numpy as np
import pytest

from protos.errors import LimitReached, PackserveError
from protos.packserve.v1 import executor_pb2, sampling_pb2
from tokenizer_service.rows import MAX_TAKE_TOKENS, Arrivals, RowRequest, RowStream


def new_row(arrivals: Arrivals | None = None, **sampling: int) -> RowStream:
    row = executor_pb2.Row(sampling=sampling_pb2.SamplingParameters(**sampling))
    return RowStream(1, RowRequest(np.array([1], np.int32), row), arrivals or Arrivals(), 100_000, lambda _: None)


def test_ids_are_copied_so_that_no_message_stays() -> None:
    row, message = new_row(), np.arange(5, dtype=np.int32)
    row.feed(message[:2], 0, None)
    message[:] = 9
    assert row.take().token_ids.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("sampling", "limit"), [({"max_tokens": 3}, 3), ({"max_tokens": 2**31 - 1}, 100_000), ({}, 100_000)]
)
def test_more_ids_than_the_row_takes_are_refused_with_both_numbers(sampling: dict[str, int], limit: int) -> None:
    row = new_row(**sampling)
    row.feed(np.zeros(limit, np.int32), 0, None)
    with pytest.raises(LimitReached, match=f"sent {limit + 1} output tokens, the row takes {limit}"):
        row.feed(np.zeros(1, np.int32), limit, None)


def test_what_is_no_id_is_refused_before_it_is_text() -> None:
    with pytest.raises(PackserveError, match="output token id is -2, must be 0 or more"):
        new_row().feed(np.array([3, -2], np.int32), 0, None)


async def test_much_that_waits_is_taken_in_parts_and_the_outcome_with_the_last() -> None:
    arrivals = Arrivals()
    row = new_row(arrivals)
    expected = np.arange(2 * MAX_TAKE_TOKENS + 1, dtype=np.int32)
    row.feed(expected, 0, expected.astype(np.float32))
    row.end(executor_pb2.Finished())
    updates = []
    while not updates or updates[-1].outcome is None:
        assert await arrivals.next() == [row]
        updates.append(row.take())
    assert [len(update.token_ids) for update in updates] == [MAX_TAKE_TOKENS, MAX_TAKE_TOKENS, 1]
    assert np.array_equal(np.concatenate([update.token_ids for update in updates]), expected)
    assert [None if update.logprobs is None else len(update.logprobs) for update in updates] == [
        *(MAX_TAKE_TOKENS, MAX_TAKE_TOKENS, 1)
    ]
