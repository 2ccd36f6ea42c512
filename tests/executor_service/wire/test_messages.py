# SPDX-License-Identifier: Apache-2.0
"""News of rows as messages: what stands in them, in which order, and how large they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from executor_service.scheduling.sequence import RowKey
from executor_service.scheduling.step import CANCELLED, Finish, FinishReason, PromptScores, RowOutput, RowStart, Scores
from executor_service.wire.messages import num_bytes, step_outputs
from protos.batch import TokenBatch
from protos.errors import InvalidRequest, ModelFailure
from protos.packserve.v1 import executor_pb2, sampling_pb2
from protos.server import MAX_MESSAGE_BYTES

BIG_ID = 2**62


def scores(num_ids: int, num_top: int, first: int = 0) -> Scores:
    top = np.arange(first, first + num_ids * num_top, dtype=np.int32).reshape(num_ids, num_top)
    return Scores(-np.arange(first, first + num_ids, dtype=np.float32), top, -top.astype(np.float32))


def key(request_id: int = 1) -> RowKey:
    return RowKey(1, request_id)


def only(outputs: list[RowOutput]) -> executor_pb2.StepOutput:
    (message,) = step_outputs(7, outputs)
    return message


def test_no_news_are_no_message() -> None:
    assert list(step_outputs(1, [])) == []


def test_merged_steps_keep_a_rows_ids_and_logprobs_together() -> None:
    outputs = [
        RowOutput(key(5), 50, position=3, scores=scores(1, 2)),
        RowOutput(key(6), 60, position=0, start=RowStart(0.0, 0.25, num_cached_tokens=16)),
        RowOutput(key(5), 51, position=4, scores=scores(1, 2, first=9), outcome=Finish(FinishReason.STOP, 51)),
    ]
    message = only(outputs)
    batch = TokenBatch.from_wire(message.batch)
    assert {request_id: row.tolist() for request_id, row in batch} == {5: [50, 51], 6: [60]}
    assert (message.step, message.first_positions) == (7, [3, 0])
    (start,) = message.starts
    assert (start.request_id, start.num_cached_tokens, start.queued_us) == (6, 16, 250_000)
    (entry,) = message.logprobs
    assert (entry.row, entry.num_top) == (0, 2)
    assert np.frombuffer(entry.logprobs, "<f4").tolist() == [0, -9]
    assert np.frombuffer(entry.top_token_ids, "<i4").tolist() == [0, 1, 9, 10]
    assert np.frombuffer(entry.top_logprobs, "<f4").tolist() == [0, -1, -9, -10]
    (terminal,) = message.terminals
    assert terminal.finished == executor_pb2.Finished(reason=sampling_pb2.FINISH_REASON_STOP, stop_token_id=51)


def test_logprobs_of_the_chosen_id_alone_have_no_alternatives() -> None:
    (entry,) = only([RowOutput(key(), 5, scores=scores(1, 0))]).logprobs
    assert (len(entry.logprobs), entry.num_top, entry.top_token_ids, entry.top_logprobs) == (4, 0, b"", b"")


def test_prompt_logprobs_have_their_own_position() -> None:
    prompt = PromptScores(513, scores(3, 2))
    message = only([RowOutput(key(8), prompt=prompt)])
    (entry,) = message.prompt_logprobs
    assert (entry.request_id, entry.first_position, entry.num_top) == (8, 513, 2)
    assert len(entry.logprobs) == 12
    assert len(entry.top_token_ids) == len(entry.top_logprobs) == 24
    assert not message.HasField("batch")


def test_failure_of_the_model_is_told_by_number() -> None:
    (terminal,) = only([RowOutput(key(), outcome=ModelFailure("logits are not finite"))]).terminals
    assert (terminal.error.code, terminal.error.detail) == (13, "logits are not finite")


def test_large_news_are_several_messages_each_within_the_wires_bound() -> None:
    """A row's prompt logprobs come in order and before its first id, or with it; nothing is lost."""
    outputs = [RowOutput(key(i), prompt=PromptScores(1, scores(512, 20))) for i in range(60)]
    outputs += [RowOutput(key(i), prompt=PromptScores(513, scores(512, 20)), token_id=i) for i in range(60)]
    outputs.append(RowOutput(key(99), 5, prompt=PromptScores(1, scores(100_000, 20))))
    outputs.append(RowOutput(key(99), 6, position=1, outcome=CANCELLED))
    messages = list(step_outputs(3, outputs))
    assert 4 < len(messages) < 20
    assert max(message.ByteSize() for message in messages) <= MAX_MESSAGE_BYTES
    assert {message.step for message in messages} == {3}
    next_position = dict.fromkeys([*range(60), 99], 1)
    token_ids: dict[int, list[int]] = {}
    for message in messages:
        for entry in message.prompt_logprobs:
            assert entry.first_position == next_position[entry.request_id]
            next_position[entry.request_id] += len(entry.logprobs) // 4
            assert len(entry.top_token_ids) == 20 * len(entry.logprobs)
        for request_id, row in TokenBatch.from_wire(message.batch):
            assert next_position[request_id] == (100_001 if request_id == 99 else 1025)
            token_ids.setdefault(request_id, []).extend(row.tolist())
    assert token_ids == {**{i: [i] for i in range(60)}, 99: [5, 6]}
    assert sum(len(message.terminals) for message in messages) == 1


def test_cut_prompt_logprobs_are_the_same_numbers() -> None:
    whole = scores(30_000, 20)
    messages = list(step_outputs(1, [RowOutput(key(), prompt=PromptScores(1, whole))]))
    entries = [entry for message in messages for entry in message.prompt_logprobs]
    assert len(entries) > 3
    for name, dtype in (("logprobs", "<f4"), ("top_token_ids", "<i4"), ("top_logprobs", "<f4")):
        joined = b"".join(getattr(entry, name) for entry in entries)
        assert np.array_equal(np.frombuffer(joined, dtype), getattr(whole, name).ravel())


@pytest.mark.parametrize(
    "output",
    [
        RowOutput(key(BIG_ID), 2**31 - 1, position=2**31),
        RowOutput(key(BIG_ID), 2**31 - 1, start=RowStart(-1e9, 1e9, num_cached_tokens=2**31)),
        RowOutput(key(BIG_ID), 2**31 - 1, outcome=Finish(FinishReason.STOP, 2**31 - 1)),
        RowOutput(key(BIG_ID), 2**31 - 1, scores=scores(1, 20)),
        RowOutput(key(BIG_ID), 2**31 - 1, prompt=PromptScores(2**31, scores(500, 20)), scores=scores(1, 20)),
        RowOutput(key(BIG_ID), outcome=InvalidRequest("é" * 600)),
        RowOutput(key(BIG_ID), outcome=CANCELLED),
    ],
)
def test_news_are_never_larger_than_they_are_counted(output: RowOutput) -> None:
    outputs = [replace(output, key=key(BIG_ID + i)) for i in range(20)]
    assert sum(map(num_bytes, outputs)) >= only(outputs).ByteSize() - 8
