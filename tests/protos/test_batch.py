# SPDX-License-Identifier: Apache-2.0
"""TokenBatch holds its invariants, there and back over the wire, without a loop over ids."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.batch import TokenBatch, check_token_range
from protos.errors import InvalidRequest
from protos.packserve.v1 import batch_pb2


def array(*values: int, dtype: type = np.int64) -> np.ndarray:  # type: ignore[type-arg]
    return np.array(values, dtype)


def test_rows_are_slices() -> None:
    batch = TokenBatch.pack([7, 9, 8], [array(1, 2, dtype=np.int32), array(dtype=np.int32), array(3, dtype=np.int32)])
    assert batch.offsets.tolist() == [0, 2, 2, 3]
    assert [(request_id, ids.tolist()) for request_id, ids in batch] == [(7, [1, 2]), (9, []), (8, [3])]


@given(st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=20), max_size=8))
def test_wire_round_trip(rows: list[list[int]]) -> None:
    ids = [2**64 - 1 - i for i in range(len(rows))]
    batch = TokenBatch.pack(ids, [np.array(row, np.int32) for row in rows])
    message = batch_pb2.TokenBatch.FromString(batch.to_wire().SerializeToString())
    assert [(i, row.tolist()) for i, row in TokenBatch.from_wire(message)] == list(zip(ids, rows, strict=True))


def test_ids_are_little_endian_int32_on_the_wire() -> None:
    message = TokenBatch.pack([1], [array(1, -2, dtype=np.int32)]).to_wire()
    assert message.token_ids == b"\x01\x00\x00\x00\xfe\xff\xff\xff"


def test_empty_message_is_an_empty_batch() -> None:
    assert len(TokenBatch.from_wire(batch_pb2.TokenBatch())) == 0


@pytest.mark.parametrize(
    ("request_ids", "num_bytes", "offsets", "words"),
    [
        ([1], 8, [0, 3], "offsets[1] is 3, token_ids has 2 ids"),
        ([1, 2], 8, [0, 2], "offsets has 2 entries, 2 rows take 3"),
        ([1, 2, 3], 8, [0, 2, 1, 2], "offsets[2] is 1, below offsets[1] = 2"),
        ([1], 8, [1, 2], "offsets[0] is 1, must be 0"),
        ([1], 7, [0, 1], "token_ids has 7 bytes, an id takes 4"),
        ([5, 5], 8, [0, 1, 2], "request_ids has 2 ids, 1 of them different"),
        ([1], 4, [], "offsets has 1 entries, 1 rows take 2"),
    ],
)
def test_broken_invariant_gives_both_numbers(
    request_ids: list[int], num_bytes: int, offsets: list[int], words: str
) -> None:
    message = batch_pb2.TokenBatch(request_ids=request_ids, token_ids=bytes(num_bytes), offsets=offsets)
    with pytest.raises(InvalidRequest) as error:
        TokenBatch.from_wire(message)
    assert str(error.value) == words


def test_range_check_names_the_first_id_outside() -> None:
    check_token_range(array(0, 9, dtype=np.int32), 10, "x")
    check_token_range(array(dtype=np.int32), 10, "x")
    with pytest.raises(InvalidRequest, match=r"x\[1\] is 10, the model's vocabulary is \[0, 10\)"):
        check_token_range(array(3, 10, -1, dtype=np.int32), 10, "x")


def calls_there_and_back(num_tokens: int) -> int:
    batch = TokenBatch.pack([1], [np.zeros(num_tokens, np.int32)])
    num_calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal num_calls
        num_calls += event in ("call", "c_call")

    gc.disable()  # its callbacks would be counted
    sys.setprofile(count)
    try:
        TokenBatch.from_wire(batch.to_wire())
    finally:
        sys.setprofile(None)
        gc.enable()
    return num_calls


def test_calls_do_not_grow_with_ids() -> None:
    assert calls_there_and_back(1_000) == calls_there_and_back(100_000)
