# SPDX-License-Identifier: Apache-2.0
"""Between the engine's plain values and the executor's wire messages, none of them too large.

Does not know streams or the engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from time import monotonic

import numpy as np

from executor_service.scheduling.step import (
    Cancelled,
    Finish,
    FinishReason,
    Float32Array,
    Outcome,
    PromptScores,
    RowOutput,
    RowStart,
    Scores,
)
from protos.batch import WIRE_DTYPE, Int32Array, TokenBatch
from protos.errors import PackserveError
from protos.packserve.v1 import executor_pb2, sampling_pb2
from protos.rpc import code_number, detail

_REASONS = {
    FinishReason.STOP: sampling_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: sampling_pb2.FINISH_REASON_LENGTH,
}

# Of one message, by num_bytes: half of what the wire takes, so that a message can pass it by one output.
MAX_STEP_BYTES = 2 * 2**20
# Of prompt logprobs in one output; those of more positions are cut.
MAX_PROMPT_BYTES = 2**20
# What an output takes on the wire at most: an id or an outcome alone; what a start or scores add beside their numbers.
OUTPUT_BYTES = 40
START_BYTES = 48
SCORES_BYTES = 64


def step_outputs(step: int, outputs: list[RowOutput]) -> Iterator[executor_pb2.StepOutput]:
    """One message, unless it would be too large. What comes of a row's prompt comes before its first id, or with it."""
    part: list[RowOutput] = []
    part_bytes = 0
    for output in _cut(outputs):
        if part_bytes > MAX_STEP_BYTES:
            yield step_output(step, part)
            part, part_bytes = [], 0
        part.append(output)
        part_bytes += num_bytes(output)
    if part:
        yield step_output(step, part)


def num_bytes(output: RowOutput) -> int:
    """On the wire, rounded up."""
    total = OUTPUT_BYTES + (START_BYTES if output.start else 0)
    for scores in (output.scores, output.prompt.scores if output.prompt else None):
        if scores is not None:
            total += SCORES_BYTES + scores.logprobs.nbytes + scores.top_token_ids.nbytes + scores.top_logprobs.nbytes
    if output.outcome is not None:
        total += OUTPUT_BYTES
    if isinstance(output.outcome, PackserveError):
        total += len(detail(output.outcome).encode())
    return total


def _cut(outputs: list[RowOutput]) -> Iterator[RowOutput]:
    """Prompt logprobs that are large go in parts, ahead of the rest of their row's news."""
    for output in outputs:
        prompt = output.prompt
        while prompt is not None and (most := _max_positions(prompt)) < len(prompt.scores.logprobs):
            first, prompt = _split(prompt, most)
            yield RowOutput(output.key, prompt=first)
            output = replace(output, prompt=prompt)
        yield output


def _max_positions(prompt: PromptScores) -> int:
    num_top: int = prompt.scores.top_token_ids.shape[1]
    return MAX_PROMPT_BYTES // (4 + 8 * num_top)


def _split(prompt: PromptScores, most: int) -> tuple[PromptScores, PromptScores]:
    s = prompt.scores
    first = Scores(s.logprobs[:most], s.top_token_ids[:most], s.top_logprobs[:most])
    rest = Scores(s.logprobs[most:], s.top_token_ids[most:], s.top_logprobs[most:])
    return PromptScores(prompt.first_position, first), PromptScores(prompt.first_position + most, rest)


def step_output(step: int, outputs: list[RowOutput]) -> executor_pb2.StepOutput:
    """One message for the news of one step, or of several that were merged: a row's ids stand together, in order."""
    message = executor_pb2.StepOutput(step=step)
    rows: dict[int, list[RowOutput]] = {}
    for output in outputs:
        request_id = output.key.request_id
        if output.prompt is not None:
            message.prompt_logprobs.append(_prompt_logprobs(request_id, output.prompt))
        if output.token_id is not None:
            rows.setdefault(request_id, []).append(output)
        if output.outcome is not None:
            message.terminals.append(terminal(request_id, output.outcome))
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
        if scores := [output.scores for output in row if output.scores is not None]:
            assert len(scores) == len(row), "a row has scores of every id or of none"
            message.logprobs.append(_row_logprobs(i, scores))


def _row_logprobs(row: int, scores: list[Scores]) -> executor_pb2.RowLogprobs:
    return executor_pb2.RowLogprobs(
        row=row,
        logprobs=b"".join(_floats(s.logprobs) for s in scores),
        num_top=scores[0].top_token_ids.shape[1],
        top_token_ids=b"".join(_ids(s.top_token_ids) for s in scores),
        top_logprobs=b"".join(_floats(s.top_logprobs) for s in scores),
    )


def _prompt_logprobs(request_id: int, prompt: PromptScores) -> executor_pb2.PromptLogprobs:
    scores = prompt.scores
    return executor_pb2.PromptLogprobs(
        request_id=request_id,
        first_position=prompt.first_position,
        logprobs=_floats(scores.logprobs),
        num_top=scores.top_token_ids.shape[1],
        top_token_ids=_ids(scores.top_token_ids),
        top_logprobs=_floats(scores.top_logprobs),
    )


def _floats(values: Float32Array) -> bytes:
    return values.astype("<f4", copy=False).tobytes()


def _ids(values: Int32Array) -> bytes:
    return values.astype(WIRE_DTYPE, copy=False).tobytes()


def _row_start(request_id: int, start: RowStart) -> executor_pb2.RowStart:
    return executor_pb2.RowStart(
        request_id=request_id,
        num_cached_tokens=start.num_cached_tokens,
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
