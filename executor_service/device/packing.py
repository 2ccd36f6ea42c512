# SPDX-License-Identifier: Apache-2.0
"""A Step becomes a ForwardBatch: flat arrays, built on the host by numpy and copied to the device once.

No step here loops over ids. Does not know the model.
"""

from __future__ import annotations

import numpy as np
import torch

from executor_service.device.transfer import upload
from executor_service.models.forward_batch import ForwardBatch
from executor_service.scheduling.step import Step, StepRow
from protos.batch import Int32Array, Int64Array

_NO_IDS = np.zeros(1, np.int32)


def pack(step: Step, block_tokens: int, device: torch.device, sampled: torch.Tensor | None = None) -> ForwardBatch:
    """sampled: int32 ids that the step before chose, still on the device; rows that wait for one read it there."""
    rows = step.rows
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([row.num_tokens for row in rows], out=offsets[1:])
    positions = _positions(rows, offsets)
    tables = _block_tables(rows)
    row_of_token = np.repeat(np.arange(len(rows)), offsets[1:] - offsets[:-1])
    slots = tables[:, row_of_token, positions // block_tokens] * block_tokens + positions % block_tokens
    token_ids = upload(_known_token_ids(rows), np.int32, device)
    return ForwardBatch(
        token_ids=_with_sampled(token_ids, rows, offsets, sampled),
        positions=upload(positions, np.int64, device),
        slots=upload(slots, np.int64, device),
        block_tables=upload(tables, np.int64, device),
        logit_rows=upload(_logit_rows(rows, offsets), np.int64, device),
        offsets=tuple(offsets.tolist()),
        context_lens=tuple(row.context_len for row in rows),
    )


def _positions(rows: list[StepRow], offsets: Int64Array) -> Int64Array:
    """[N]: 0, 1, 2, ... within each row, from its first position on."""
    starts = np.array([row.first_position for row in rows], np.int64) - offsets[:-1]
    return np.repeat(starts, offsets[1:] - offsets[:-1]) + np.arange(offsets[-1])


def _block_tables(rows: list[StepRow]) -> Int64Array:
    """[G, B, M], padded with 0."""
    num_blocks = max(len(block_ids) for row in rows for block_ids in row.block_ids)
    tables = np.zeros((len(rows[0].block_ids), len(rows), num_blocks), np.int64)
    for i, row in enumerate(rows):
        for table, block_ids in zip(tables[:, i], row.block_ids, strict=True):
            table[: len(block_ids)] = block_ids
    return tables


def _logit_rows(rows: list[StepRow], offsets: Int64Array) -> Int64Array:
    """[R + Q]: the last token of each row that samples, then the tokens that prompt_targets follow."""
    last = offsets[1:][[row.sampling is not None for row in rows]] - 1
    targets = zip(offsets.tolist(), (row.prompt_targets for row in rows), strict=False)
    scored = [np.arange(start, start + len(ids)) for start, ids in targets if ids is not None]
    return np.concatenate([last, *scored])


def _known_token_ids(rows: list[StepRow]) -> Int32Array:
    """[N], with a 0 where the id is on the device."""
    return np.concatenate([_NO_IDS if row.token_ids is None else row.token_ids for row in rows])


def _with_sampled(
    token_ids: torch.Tensor, rows: list[StepRow], offsets: Int64Array, sampled: torch.Tensor | None
) -> torch.Tensor:
    waiting = [i for i, row in enumerate(rows) if row.token_ids is None]
    if not waiting:
        return token_ids
    assert sampled is not None, "a row waits for an id that no step sampled"
    where = upload(offsets[waiting], np.int64, token_ids.device)
    which = upload([rows[i].sample_index for i in waiting], np.int64, token_ids.device)
    return token_ids.index_copy(0, where, sampled[which])
