# SPDX-License-Identifier: Apache-2.0
"""A step becomes flat arrays; ids that are still on the device are read there; no loop over ids."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from types import FrameType

import numpy as np
import pytest
import torch

from executor_service.device.packing import pack
from executor_service.scheduling.cache_group import CacheGroup
from executor_service.scheduling.scheduler import Scheduler
from executor_service.scheduling.sequence import RowKey, Sampling
from executor_service.scheduling.sequence_cache import SequenceCache
from executor_service.scheduling.step import Step, StepRow
from executor_service.wire.admission import Admission
from protos.batch import TokenBatch
from protos.packserve.v1 import batch_pb2, executor_pb2, sampling_pb2

CPU = torch.device("cpu")
BLOCK_TOKENS = 1 << 17


def row(
    first: int,
    token_ids: list[int] | None,
    *block_ids: list[int],
    samples: bool = True,
    index: int = -1,
    targets: list[int] | None = None,
) -> StepRow:
    """block_ids: of each cache group."""
    ids = None if token_ids is None else np.array(token_ids, np.int32)
    return StepRow(
        RowKey(1, 1),
        first_position=first,
        num_tokens=1 if ids is None else len(ids),
        token_ids=ids,
        sample_index=index,
        block_ids=block_ids,
        sampling=Sampling() if samples else None,
        output_position=0,
        prompt_targets=None if targets is None else np.array(targets, np.int32),
    )


def test_chunks_and_decode_rows_look_alike() -> None:
    rows = [row(6, [1, 2, 3], [7, 0, 4], samples=False), row(9, [4], [5, 9, 2]), row(0, [5, 6], [3])]
    batch = pack(Step(1, rows), 4, CPU)
    assert batch.token_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert batch.token_ids.dtype == torch.int32
    assert batch.positions.tolist() == [6, 7, 8, 9, 0, 1]
    assert batch.slots.tolist() == [[0 * 4 + 2, 0 * 4 + 3, 4 * 4 + 0, 2 * 4 + 1, 12, 13]]
    assert batch.block_tables.tolist() == [[[7, 0, 4], [5, 9, 2], [3, 0, 0]]]
    assert batch.offsets == (0, 3, 4, 6)
    assert batch.context_lens == (9, 10, 2)
    assert batch.logit_rows.tolist() == [3, 5]


def test_each_cache_group_has_slots_and_tables() -> None:
    rows = [row(6, [1, 2, 3], [7, 0, 4], [0, 5, 6]), row(0, [5, 6], [3], [8])]
    batch = pack(Step(1, rows), 4, CPU)
    assert batch.slots.tolist() == [[0 * 4 + 2, 0 * 4 + 3, 4 * 4, 12, 13], [5 * 4 + 2, 5 * 4 + 3, 6 * 4, 32, 33]]
    assert batch.block_tables.tolist() == [[[7, 0, 4], [3, 0, 0]], [[0, 5, 6], [8, 0, 0]]]


def test_logits_are_of_rows_that_sample_then_of_prompt_targets() -> None:
    rows = [
        row(0, [1, 2, 3], [0], samples=False, targets=[2, 3, 4]),
        row(4, [4], [1, 2]),
        row(0, [5, 6, 7], [3], targets=[6, 7]),
        row(0, [8], [4], targets=[]),
    ]
    assert pack(Step(1, rows), 4, CPU).logit_rows.tolist() == [3, 6, 7, 0, 1, 2, 4, 5]
    assert pack(Step(1, [row(0, [1, 2], [0], samples=False)]), 4, CPU).logit_rows.tolist() == []


def test_sampled_ids_are_read_on_the_device() -> None:
    rows = [row(3, None, [0], index=2), row(0, [8, 9], [1]), row(5, None, [2, 3], index=0)]
    batch = pack(Step(2, rows), 4, CPU, torch.tensor([11, 12, 13], dtype=torch.int32))
    assert batch.token_ids.tolist() == [13, 8, 9, 11]


def calls_from_wire_to_device(num_tokens: int) -> Counter[str]:
    """Every call, of Python or C functions, that one row takes from its message to the device's tensors."""
    message = batch_pb2.TokenBatch(
        request_ids=[7], token_ids=np.arange(num_tokens, dtype="<i4").tobytes(), offsets=[0, num_tokens]
    )
    admission = Admission(200_000, 200_000, frozenset(), sampling_pb2.SamplingParameters())
    # In one block: what is done for each block of a prompt, however many ids it has, is not counted.
    cache = SequenceCache((CacheGroup(None, 1),), [4], BLOCK_TOKENS)
    scheduler = Scheduler(cache, max_step_tokens=1_000_000, max_sequences=4)
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            calls[event] += 1

    gc.disable()  # its callbacks would be counted
    sys.setprofile(count)
    try:
        for request_id, token_ids in TokenBatch.from_wire(message):
            scheduler.add(admission.admit(RowKey(1, request_id), token_ids, executor_pb2.Row()))
        step = scheduler.schedule()
        batch = pack(step, BLOCK_TOKENS, CPU) if step else None
    finally:
        sys.setprofile(None)
        gc.enable()
    assert batch is not None
    assert batch.token_ids.tolist() == list(range(num_tokens))
    return calls


def test_calls_from_wire_to_device_do_not_grow_with_ids() -> None:
    calls_from_wire_to_device(10)  # descriptors and caches
    assert calls_from_wire_to_device(1_000) == calls_from_wire_to_device(100_000)


def test_row_without_a_sampled_id_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError, match="no step sampled"):
        pack(Step(1, [row(3, None, [0], index=0)]), 4, CPU)
