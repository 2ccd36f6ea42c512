# SPDX-License-Identifier: Apache-2.0
"""Between the engine's plain values and the executor's wire messages.

Does not know streams or the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from time import monotonic

import numpy as np

from executor_service.step import Cancelled, Finish, FinishReason, Outcome, RowOutput, RowStart
from protos.batch import TokenBatch
from protos.packserve.v1 import executor_pb2, sampling_pb2
from protos.rpc import code_number, detail

_REASONS = {
    FinishReason.STOP: sampling_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: sampling_pb2.FINISH_REASON_LENGTH,
}


# Of one message: with the longest errors it stays below the wire's 4 MiB.
MAX_OUTPUTS = 4096


def step_outputs(step: int, outputs: list[RowOutput]) -> Iterator[executor_pb2.StepOutput]:
    """One message, unless a burst of rows makes it too large."""
    for start in range(0, len(outputs), MAX_OUTPUTS):
        yield step_output(step, outputs[start : start + MAX_OUTPUTS])


def step_output(step: int, outputs: list[RowOutput]) -> executor_pb2.StepOutput:
    """One message for the news of one step, or of several that were merged: a row's ids stand together, in order."""
    message = executor_pb2.StepOutput(step=step)
    rows: dict[int, list[RowOutput]] = {}
    for output in outputs:
        if output.token_id is not None:
            rows.setdefault(output.key.request_id, []).append(output)
        if output.outcome is not None:
            message.terminals.append(terminal(output.key.request_id, output.outcome))
    if rows:
        _add_rows(message, rows)
    return message


def _add_rows(message: executor_pb2.StepOutput, rows: dict[int, list[RowOutput]]) -> None:
    token_ids = [np.array([output.token_id for output in row], np.int32) for row in rows.values()]
    message.batch.CopyFrom(TokenBatch.pack(list(rows), token_ids).to_wire())
    message.first_positions.extend(row[0].position for row in rows.values())
    for i, (request_id, row) in enumerate(rows.items()):
        if row[0].start:
            message.starts.append(_row_start(request_id, row[0].start))
        if row[0].logprob is not None:
            logprobs = np.array([output.logprob for output in row], "<f4").tobytes()
            message.logprobs.append(executor_pb2.RowLogprobs(row=i, logprobs=logprobs))


def _row_start(request_id: int, start: RowStart) -> executor_pb2.RowStart:
    return executor_pb2.RowStart(
        request_id=request_id,
        queued_us=int(start.queued_s * 1e6),
        elapsed_us=int((monotonic() - start.arrival_s) * 1e6),
    )


def terminal(request_id: int, outcome: Outcome) -> executor_pb2.Terminal:
    message = executor_pb2.Terminal(request_id=request_id)
    match outcome:
        case Finish(reason, stop_token_id):
            message.finished.reason = _REASONS[reason]
            if stop_token_id is not None:
                message.finished.stop_token_id = stop_token_id
        case Cancelled():
            message.cancelled.SetInParent()
        case error:
            message.error.code = code_number(error)
            message.error.detail = detail(error)
    return message
