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

from executor_service.device import step_inputs
from executor_service.device.step_inputs import StepInputs
from executor_service.device.transfer import upload
from executor_service.scheduling.cache_group import CacheGroup
from executor_service.scheduling.scheduler import Scheduler
from executor_service.scheduling.sequence import RowKey, Sampling
from executor_service.scheduling.sequence_cache import SequenceCache
from executor_service.scheduling.step import NewBlocks, Step, StepRow
from executor_service.wire.admission import Admission
from protos.batch import TokenBatch
from protos.packserve.v1 import batch_pb2, executor_pb2, sampling_pb2

CPU = torch.device("cpu")
BLOCK_TOKENS = 1 << 17


def make_inputs(num_groups: int = 1, block_tokens: int = 4, max_blocks: int = 8) -> StepInputs:
    return StepInputs(num_groups, 4, max_blocks, block_tokens, CPU)


def row(
    slot: int,
    first: int,
    token_ids: list[int] | None,
    *block_ids: list[int],
    samples: bool = True,
    index: int = -1,
    targets: list[int] | None = None,
    first_new: int = 0,
) -> StepRow:
    """block_ids: new ones of each cache group."""
    ids = None if token_ids is None else np.array(token_ids, np.int32)
    return StepRow(
        RowKey(1, 1),
        first_position=first,
        num_tokens=1 if ids is None else len(ids),
        token_ids=ids,
        sample_index=index,
        slot=slot,
        new_blocks=tuple(NewBlocks(first_new, ids) for ids in block_ids),
        sampling=Sampling() if samples else None,
        output_position=0,
        prompt_targets=None if targets is None else np.array(targets, np.int32),
    )


def test_chunks_and_decode_rows_look_alike() -> None:
    rows = [row(2, 6, [1, 2, 3], [7, 0, 4], samples=False), row(0, 9, [4], [5, 9, 2]), row(1, 0, [5, 6], [3])]
    batch = make_inputs().pack(Step(1, rows))
    [group] = batch.groups
    assert batch.token_ids.tolist() == [1, 2, 3, 4, 5, 6]
    assert batch.positions.tolist() == [6, 7, 8, 9, 0, 1]
    assert group.slots.tolist() == [0 * 4 + 2, 0 * 4 + 3, 4 * 4 + 0, 2 * 4 + 1, 12, 13]
    assert group.block_tables.tolist() == [[7, 0, 4], [5, 9, 2], [3, 0, 0]]
    assert (batch.offsets, batch.context_lens) == ((0, 3, 4, 6), (9, 10, 2))
    assert group.offsets_on_device.tolist() == [0, 3, 4, 6]
    assert group.context_lens_on_device.tolist() == [9, 10, 2]
    assert batch.logit_rows.tolist() == [3, 5]
    tensors = (batch.token_ids, batch.positions, batch.logit_rows, group.slots, group.block_tables)
    assert {tensor.dtype for tensor in tensors} == {torch.int32}


def test_decode_rows_alone_are_packed_as_they_are_beside_prompts() -> None:
    decoding = [row(3, 9, [4], [5, 9, 2]), row(1, 0, [5], [3])]
    alone = make_inputs().pack(Step(1, decoding))
    beside = make_inputs().pack(Step(1, [*decoding, row(2, 0, [7, 8], [6])]))
    [ours], [theirs] = alone.groups, beside.groups
    assert alone.token_ids.tolist() == beside.token_ids[:2].tolist()
    assert alone.positions.tolist() == beside.positions[:2].tolist()
    assert alone.logit_rows.tolist() == beside.logit_rows[:2].tolist()
    assert ours.slots.tolist() == theirs.slots[:2].tolist()
    assert ours.block_tables.tolist() == theirs.block_tables[:2].tolist()
    assert ours.offsets_on_device.tolist() == list(ours.offsets) == list(theirs.offsets[:3])
    assert ours.context_lens_on_device.tolist() == list(ours.context_lens) == list(theirs.context_lens[:2])


def test_blocks_stay_in_the_table_of_a_slot() -> None:
    inputs = make_inputs()
    inputs.pack(Step(1, [row(2, 0, [1, 2, 3, 4, 5], [7, 3]), row(0, 0, [1], [9])]))
    batch = inputs.pack(Step(2, [row(2, 5, [6], []), row(0, 1, [2], [])]))
    assert batch.groups[0].block_tables.tolist() == [[7, 3], [9, 0]]
    batch = inputs.pack(Step(3, [row(2, 8, [6], [5], first_new=2)]))
    assert batch.groups[0].block_tables.tolist() == [[7, 3, 5]]
    assert batch.groups[0].slots.tolist() == [5 * 4]


def test_each_cache_group_has_slots_and_tables() -> None:
    rows = [row(0, 6, [1, 2, 3], [7, 0, 4], [0, 5, 6]), row(1, 0, [5, 6], [3], [8])]
    full, window = make_inputs(2).pack(Step(1, rows)).groups
    assert full.slots.tolist() == [0 * 4 + 2, 0 * 4 + 3, 4 * 4, 12, 13]
    assert window.slots.tolist() == [5 * 4 + 2, 5 * 4 + 3, 6 * 4, 32, 33]
    assert (full.block_tables.tolist(), window.block_tables.tolist()) == (
        [[7, 0, 4], [3, 0, 0]],
        [[0, 5, 6], [8, 0, 0]],
    )


def test_logits_are_of_rows_that_sample_then_of_prompt_targets() -> None:
    rows = [
        row(0, 0, [1, 2, 3], [0], samples=False, targets=[2, 3, 4]),
        row(1, 4, [4], [1, 2]),
        row(2, 0, [5, 6, 7], [3], targets=[6, 7]),
        row(3, 0, [8], [4], targets=[]),
    ]
    assert make_inputs().pack(Step(1, rows)).logit_rows.tolist() == [3, 6, 7, 0, 1, 2, 4, 5]
    assert make_inputs().pack(Step(1, [row(0, 0, [1, 2], [0], samples=False)])).logit_rows.tolist() == []


@pytest.mark.parametrize("others", [[], [row(1, 0, [8, 9], [1])]])
def test_sampled_ids_are_read_on_the_device(others: list[StepRow]) -> None:
    inputs = make_inputs()
    inputs.sampled[:3] = torch.tensor([11, 12, 13])
    batch = inputs.pack(Step(2, [row(0, 3, None, [0], index=2), *others, row(2, 5, None, [2, 3], index=0)]))
    assert batch.token_ids.tolist() == [13, *(i for other in others for i in other.token_ids.tolist()), 11]


@pytest.mark.parametrize("num_blocks", [1, 60])
def test_a_decode_step_sends_a_few_words_a_row_and_changed_entries(
    monkeypatch: pytest.MonkeyPatch, num_blocks: int
) -> None:
    """However long the context is: three words a row, two for each new block."""
    sent: list[int] = []

    def counting(arrays: list[np.ndarray], *rest: object) -> list[torch.Tensor]:
        sent.append(sum(array.nbytes for array in arrays))
        return upload(arrays, *rest)

    monkeypatch.setattr(step_inputs, "upload", counting)
    inputs = make_inputs(max_blocks=64)
    length = 4 * num_blocks
    inputs.pack(Step(1, [row(i, 0, [1] * length, list(range(num_blocks))) for i in range(4)]))
    inputs.pack(Step(2, [row(i, length, None, [7], index=i, first_new=num_blocks) for i in range(4)]))
    inputs.pack(Step(3, [row(i, length + 1, None, [], index=i) for i in range(4)]))
    assert sent[1:] == [4 * (3 * 4 + 2 * 4), 4 * 3 * 4]


def calls_from_wire_to_device(num_tokens: int) -> Counter[str]:
    """Every call, of Python or C functions, that one row takes from its message to the device's tensors."""
    message = batch_pb2.TokenBatch(
        request_ids=[7], token_ids=np.arange(num_tokens, dtype="<i4").tobytes(), offsets=[0, num_tokens]
    )
    admission = Admission(200_000, 200_000, frozenset(), sampling_pb2.SamplingParameters())
    # In one block: what is done for each block of a prompt, however many ids it has, is not counted.
    cache = SequenceCache((CacheGroup(None, 1),), [4], BLOCK_TOKENS)
    scheduler = Scheduler(cache, max_step_tokens=1_000_000, max_sequences=4)
    inputs = make_inputs(block_tokens=BLOCK_TOKENS)
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
        batch = inputs.pack(step) if step else None
    finally:
        sys.setprofile(None)
        gc.enable()
    assert batch is not None
    assert batch.token_ids.tolist() == list(range(num_tokens))
    return calls


def test_calls_from_wire_to_device_do_not_grow_with_ids() -> None:
    calls_from_wire_to_device(10)  # descriptors and caches
    assert calls_from_wire_to_device(1_000) == calls_from_wire_to_device(100_000)
