# SPDX-License-Identifier: Apache-2.0
"""Decode steps as graphs: padded to sizes that were captured, replayed on buffers that stay, without a device.

A graph of the tests runs its work again on each replay, which is what a device's does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from executor_service.device import decode_graphs
from executor_service.device.decode_graphs import SIZES, DecodeGraphs, padded, sizes_for
from executor_service.device.step_inputs import StepInputs
from executor_service.models.forward_batch import ForwardBatch, KvCache
from executor_service.scheduling.sequence import RowKey, Sampling
from executor_service.scheduling.step import NewBlocks, Step, StepRow

CPU = torch.device("cpu")
SIZE = 50
NUM_SLOTS = 6
BLOCK_TOKENS = 4
NUM_BLOCKS = 20


class FakeGraph:
    """Captures at most this many."""

    limit = 100
    updates: list[Any]

    def __init__(self, device: torch.device, pool: Any, work: Callable[[], None]) -> None:
        if FakeGraph.limit == 0:
            raise RuntimeError("stream resources are exhausted")
        FakeGraph.limit -= 1
        self.work = work

    def replay(self, update: list[dict[str, Any]]) -> None:
        FakeGraph.updates.append((self, update))
        self.work()


class EchoModel:
    """The likeliest id is the last one plus one; it keeps what it was given."""

    def __init__(self) -> None:
        self.batches: list[ForwardBatch] = []

    def forward(self, batch: ForwardBatch, cache: KvCache) -> torch.Tensor:
        self.batches.append(batch)
        return batch.token_ids[batch.logit_rows]

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot((x.long() + 1) % SIZE, SIZE).float()


def list_lengths(context_lens: tuple[int, ...]) -> list[dict[str, Any]]:
    return [{"lens": list(context_lens)}]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Callable[..., DecodeGraphs]:
    FakeGraph.limit, FakeGraph.updates = 100, []
    monkeypatch.setattr(decode_graphs, "Graph", FakeGraph)
    monkeypatch.setattr(decode_graphs, "new_graph_pool", lambda device: None)

    def make(depth: int = 2, update: Callable[[tuple[int, ...]], list[dict[str, Any]]] = list_lengths) -> DecodeGraphs:
        inputs = StepInputs(1, NUM_SLOTS, 8, BLOCK_TOKENS, CPU, NUM_SLOTS)
        inputs.tables[0, NUM_SLOTS:, 0] = NUM_BLOCKS + torch.arange(NUM_SLOTS) // BLOCK_TOKENS
        made = DecodeGraphs(EchoModel(), SimpleNamespace(graph_update=update), inputs, SIZE, depth)  # type: ignore[arg-type]
        made.capture([])
        return made

    return make


def step_of(rows: Sequence[tuple[int, int, int | None]], new_blocks: Sequence[list[int]] = ()) -> Step:
    """rows: slot, position and id, or None for the first that was sampled before."""
    return Step(
        1,
        [
            StepRow(
                RowKey(1, slot),
                position,
                1,
                None if token_id is None else np.array([token_id], np.int32),
                sample_index=0,
                slot=slot,
                new_blocks=(NewBlocks(position // BLOCK_TOKENS, list(new_blocks[i]) if new_blocks else []),),
                sampling=Sampling(),
                output_position=0,
            )
            for i, (slot, position, token_id) in enumerate(rows)
        ],
    )


def test_a_step_runs_in_the_smallest_graph_that_holds_it(graphs: Callable[..., DecodeGraphs]) -> None:
    made = graphs()
    assert sorted(made.graphs) == [1, 2, 4, 6]
    assert [made.size_for(step_of([(i, 0, 1) for i in range(n)])) for n in (1, 2, 3, 4, 5, 6)] == [1, 2, 4, 4, 6, 6]


def test_rows_of_a_padded_step_are_their_own(graphs: Callable[..., DecodeGraphs]) -> None:
    made = graphs()
    made.inputs.sampled[0] = 30
    logits = made.run(step_of([(4, 5, 7), (1, 0, None), (3, 9, 11)], [[9], [8], [7]]), 4)
    assert logits.argmax(dim=-1).tolist() == [8, 31, 12]
    batch = made.model.batches[-1]
    [rows] = batch.groups
    assert batch.positions.tolist() == [5, 0, 9, 0]
    assert rows.slots.tolist() == [9 * 4 + 1, 8 * 4, 7 * 4 + 1, NUM_BLOCKS * 4]
    assert rows.context_lens_on_device.tolist() == [6, 1, 10, 1]


def test_padding_writes_to_spare_blocks_each_row_to_a_place_of_its_own(graphs: Callable[..., DecodeGraphs]) -> None:
    made = graphs()
    made.run(step_of([(0, 0, 7)], [[3]]), 6)
    slots = made.model.batches[-1].groups[0].slots.tolist()
    assert len(set(slots)) == 6
    assert min(slots[1:]) >= NUM_BLOCKS * BLOCK_TOKENS


def test_what_is_tried_out_writes_to_spare_blocks_alone(graphs: Callable[..., DecodeGraphs]) -> None:
    """Also where a row has no more than one block, and a block fewer places than there are rows."""
    for batch in graphs().model.batches:
        slots = batch.groups[0].slots.tolist()
        assert len(set(slots)) == len(slots)
        assert min(slots) >= NUM_BLOCKS * BLOCK_TOKENS
        assert max(batch.groups[0].context_lens_on_device.tolist()) <= BLOCK_TOKENS


def test_blocks_of_a_replayed_step_stay_in_the_tables(graphs: Callable[..., DecodeGraphs]) -> None:
    made = graphs()
    made.run(step_of([(2, 3, 7)], [[5]]), 1)
    made.run(step_of([(2, 4, 7)], [[11]]), 1)
    made.run(step_of([(2, 5, 7)]), 1)
    assert made.inputs.tables[0, 2, :2].tolist() == [5, 11]
    assert made.model.batches[-1].groups[0].slots.tolist() == [11 * 4 + 1]


def test_graphs_of_one_size_take_turns_where_a_replay_has_numbers_on_the_host(
    graphs: Callable[..., DecodeGraphs],
) -> None:
    """The one in flight still reads its own: at depth 2 a third step finds the first one's graph free."""
    made = graphs()
    for position in range(4):
        made.run(step_of([(0, position, 1)], [[3]]), 2)
    used = [graph for graph, _ in FakeGraph.updates]
    assert used[0] is used[2] is not used[1]
    assert used[1] is used[3]
    assert [update for _, update in FakeGraph.updates] == [[{"lens": [n, 1]}] for n in (1, 2, 3, 4)]


def test_one_graph_of_a_size_is_enough_where_the_device_reads_its_lengths(
    graphs: Callable[..., DecodeGraphs],
) -> None:
    assert {len(same_size) for same_size in graphs(update=lambda lens: []).graphs.values()} == {1}


def test_buffers_stay_where_they_are_between_replays(graphs: Callable[..., DecodeGraphs]) -> None:
    made = graphs()

    def addresses(position: int) -> tuple[int, ...]:
        logits = made.run(step_of([(0, position, 1), (1, position, 2)], [[3], [4]]), 2)
        return logits.data_ptr(), made.buffer.data_ptr(), made.inputs.tables.data_ptr(), made.inputs.sampled.data_ptr()

    assert addresses(0) == addresses(1) == addresses(2)


def test_what_the_device_has_no_room_for_is_not_captured(
    graphs: Callable[..., DecodeGraphs], caplog: pytest.LogCaptureFixture
) -> None:
    FakeGraph.limit = 4
    made = graphs()
    assert sorted(made.graphs) == [4, 6]
    assert made.size_for(step_of([(0, 0, 1)])) == 4
    assert "no decode graph of 2 rows, nor of fewer: stream resources are exhausted" in caplog.text


def test_a_step_with_very_many_new_blocks_is_no_graph(graphs: Callable[..., DecodeGraphs]) -> None:
    assert graphs().size_for(step_of([(0, 0, 1)], [list(range(10))])) is None


def test_an_error_that_is_not_the_capture_s_is_no_lack_of_room(graphs: Callable[..., DecodeGraphs]) -> None:
    made = graphs()
    made.model.logits = lambda x: torch.zeros(1, 2)
    with pytest.raises(RuntimeError, match="size"):
        made.capture([])


def test_sizes_end_at_the_most_rows_that_run() -> None:
    assert sizes_for(300) == sorted(SIZES, reverse=True)
    assert sizes_for(20) == [20, 16, 8, 4, 2, 1]


def test_padding_keeps_the_rows_before_it() -> None:
    arrays = [np.array(values, np.int32) for values in ([5, -1], [7, 9], [3, 0])]
    inputs = StepInputs(1, 12, 8, 2, CPU, 12)
    expected = [[5, -1, 0, 0, 0], [7, 9, 0, 1, 0], [3, 0, 12, 13, 14]]
    assert [array.tolist() for array in padded(arrays, 5, inputs)] == expected
