# SPDX-License-Identifier: Apache-2.0
"""A stream's rows as messages, without a stream."""

from __future__ import annotations

import numpy as np
import pytest

from protos.batch import TokenBatch
from protos.errors import InvalidRequest, LimitReached, RequestCancelled, Unavailable
from protos.packserve.v1 import executor_pb2
from tests.fixtures.fake_executor import top_logprobs
from tokenizer_service.open_rows import OpenRows
from tokenizer_service.packing import MAX_ROW_BYTES
from tokenizer_service.rows import Arrivals, RowRequest, RowStream


def submit(rows: OpenRows) -> RowStream:
    return rows.submit(RowRequest(np.array([1], np.int32), executor_pb2.Row()), Arrivals(), 8)


def step(*request_ids: int, positions: list[int]) -> executor_pb2.StepOutput:
    batch = TokenBatch.pack(request_ids, [np.array([7], np.int32)] * len(request_ids)).to_wire()
    return executor_pb2.StepOutput(batch=batch, first_positions=positions)


def test_cancelled_row_that_the_executor_still_answers_is_passed_over() -> None:
    rows = OpenRows(lambda _: None)
    gone, kept = submit(rows), submit(rows)
    rows.take_work()
    gone.cancel()
    rows.dispatch(step(gone.request_id, kept.request_id, positions=[0, 0]))
    assert not len(gone.take().token_ids)
    assert kept.take().token_ids.tolist() == [7]
    (message,) = rows.take_work()
    assert message.cancelled_request_ids == [gone.request_id]


def test_message_that_contradicts_itself_is_refused() -> None:
    rows = OpenRows(lambda _: None)
    row = submit(rows)
    with pytest.raises(InvalidRequest, match="first_positions has 0 entries, the batch has 1 rows"):
        rows.dispatch(step(row.request_id, positions=[]))


def test_row_that_the_executor_cancelled_says_so() -> None:
    rows = OpenRows(lambda _: None)
    row = submit(rows)
    terminal = executor_pb2.Terminal(request_id=row.request_id, cancelled=executor_pb2.Cancelled())
    rows.dispatch(executor_pb2.StepOutput(terminals=[terminal]))
    assert isinstance(row.take().outcome, RequestCancelled)
    assert len(rows) == 0


def test_end_of_the_stream_ends_every_row_and_leaves_nothing_to_send() -> None:
    rows = OpenRows(lambda _: None)
    sent = submit(rows)
    rows.take_work()
    unsent = submit(rows)
    rows.end_all(Unavailable("lost"))
    assert isinstance(sent.take().outcome, Unavailable)
    assert isinstance(unsent.take().outcome, Unavailable)
    assert list(rows.take_work()) == []
    assert submit(rows).request_id > unsent.request_id


def test_logprobs_that_do_not_go_with_their_ids_end_the_row() -> None:
    rows = OpenRows(lambda _: None)
    row = submit(rows)
    message = step(row.request_id, positions=[0])
    message.logprobs.add(row=0, logprobs=bytes(8))
    rows.dispatch(message)
    assert str(row.take().outcome) == "the executor sent 2 logprobs for 1 tokens"
    assert len(rows) == 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"logprobs": bytes(7)}, "logprobs has 7 bytes, 1 numbers take 4"),
        ({"logprobs": bytes(8), "num_top": 2, "top_token_ids": bytes(8)}, "top_token_ids has 8 bytes, 4 numbers"),
        ({"logprobs": bytes(4), "top_token_ids": bytes(4)}, "top_token_ids has 4 bytes, 0 numbers take 0"),
        ({"num_top": 2**32 - 1, "top_logprobs": bytes(4)}, "top_logprobs has 4 bytes, 0 numbers take 0"),
    ],
)
def test_logprobs_that_contradict_themselves_are_refused(fields: dict[str, object], words: str) -> None:
    rows = OpenRows(lambda _: None)
    row = submit(rows)
    for message in (step(row.request_id, positions=[0]), executor_pb2.StepOutput()):
        if message.HasField("batch"):
            message.logprobs.add(row=0, **fields)
        else:
            message.prompt_logprobs.add(request_id=row.request_id, **fields)
        with pytest.raises(InvalidRequest, match=words):
            rows.dispatch(message)


def test_prompt_logprobs_that_were_not_asked_for_end_their_row_and_no_other() -> None:
    rows = OpenRows(lambda _: None)
    liar, honest = submit(rows), submit(rows)
    message = step(liar.request_id, honest.request_id, positions=[0, 0])
    message.prompt_logprobs.add(request_id=liar.request_id, first_position=1, **top_logprobs(1, 0))
    message.prompt_logprobs.add(request_id=999, first_position=1, **top_logprobs(1, 0))
    rows.dispatch(message)
    assert str(liar.take().outcome) == "the executor scored 2 prompt tokens, the prompt has 1"
    assert honest.take().token_ids.tolist() == [7]


def test_row_whose_parameters_fill_a_message_is_refused_before_it_waits() -> None:
    rows = OpenRows(lambda _: None)
    row = executor_pb2.Row(cache_salt=bytes(MAX_ROW_BYTES))
    with pytest.raises(LimitReached, match=f"a row may have {MAX_ROW_BYTES}"):
        rows.submit(RowRequest(np.array([1], np.int32), row), Arrivals(), 8)
    assert len(rows) == 0


def test_only_rows_that_were_taken_count_as_sent() -> None:
    rows = OpenRows(lambda _: None)
    submit(rows)
    assert (len(rows), rows.num_sent) == (1, 0)
    rows.take_work()
    submit(rows)
    assert (len(rows), rows.num_sent) == (2, 1)
