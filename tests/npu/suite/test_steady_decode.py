# SPDX-License-Identifier: Apache-2.0
"""What a decode step costs the host when nothing comes or goes, counted call by call. Nothing is computed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from executor_service.device.runner import DeviceRunner
from executor_service.scheduling.sequence import Sampling, Sequence, UInt32Array
from executor_service.scheduling.step import Step
from tests.fixtures.engine_run import EngineRun
from tests.fixtures.random_model import write_random_model
from tests.fixtures.sequences import make_sequence
from tests.npu.suite.calls import Call, watch
from tests.npu.suite.decoders import load_decoder

BLOCK = 16
NUM_LAYERS = 3
NUM_ROWS = 4
NUM_OUTPUT = 40
MAX_ROW_BYTES = 64
# Where a block table changes, and what stands there.
NEW_BLOCK_BYTES = 8
# Beside a bit for each id: whose mask it is.
MASK_BYTES = 8
VOCABULARY = 320


class AnyText:
    """A grammar that allows all: its masks go down with each step."""

    is_complete = False

    def accept(self, token_id: int) -> bool:
        return True

    def mask(self) -> UInt32Array:
        return np.full(-(-VOCABULARY // 32), 2**32 - 1, np.uint32)


ROWS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"sampling": Sampling(temperature=0.8, top_k=20, top_p=0.9, min_p=0.02, seed=7)},
    "penalized": {
        "sampling": Sampling(temperature=0.8, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.4)
    },
    "masked": {"sampling": Sampling(temperature=0.8), "grammar": AnyText()},
}


class DecodeStep(NamedTuple):
    forward: Call
    sample: Call
    sampled: Call


class Run(NamedTuple):
    """addresses: after each forward, of what steps read and write."""

    runner: DeviceRunner
    warm_up: Call
    steps: list[DecodeStep]
    addresses: list[tuple[int, ...]]


@pytest.fixture(scope="module", params=ROWS)
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, device: torch.device, dtype: torch.dtype
) -> Run:
    """Rows of one length, which are computed by one step and decoded by all that follow."""
    directory: Path = tmp_path_factory.mktemp("model")
    write_random_model(directory, hidden_size=128, head_dim=128, num_layers=NUM_LAYERS, vocabulary_size=VOCABULARY)
    decoder = load_decoder(directory, BLOCK, dtype, device)
    engine_run = EngineRun(decoder, max_sequences=NUM_ROWS, depth=2, block_tokens=BLOCK, device=device, has_graphs=True)
    runner = engine_run.runner
    addresses = note_addresses(runner)
    calls = watch(runner)
    engine_run.run([row(i, ROWS[request.param]) for i in range(NUM_ROWS)])
    warm_up, *calls = calls
    steps = [DecodeStep(*step) for step in zip(*(of_method(calls, name) for name in DecodeStep._fields), strict=True)]
    assert len(steps) >= NUM_OUTPUT
    return Run(runner, warm_up, steps[1:], addresses[-len(steps) + 1 :])


def row(i: int, fields: dict[str, Any]) -> Sequence:
    """Shares no start with another."""
    return make_sequence(i, token_ids=np.full(20, i, np.int32), max_output_tokens=NUM_OUTPUT, **fields)


def of_method(calls: list[Call], name: str) -> Iterator[Call]:
    return (call for call in calls if call.name == name)


def note_addresses(runner: DeviceRunner) -> list[tuple[int, ...]]:
    addresses: list[tuple[int, ...]] = []
    forward = runner.forward

    def noting(step: Step) -> object:
        launched = forward(step)
        inputs, graphs = runner.inputs, runner._graphs
        used = [launched.logits, inputs.tables, inputs.sampled, graphs and graphs.buffer]
        addresses.append(tuple(tensor.data_ptr() for tensor in used if tensor is not None))
        return launched

    runner.forward = noting  # type: ignore[method-assign,assignment]
    return addresses


def test_the_host_waits_for_the_sampled_ids_only(run: Run) -> None:
    for step in run.steps:
        assert step.forward.waits == []
        assert step.sample.waits == []
        assert step.sampled.log == ["sync event"]


def test_little_goes_down(run: Run) -> None:
    for step in run.steps:
        rows = step.forward.args[0].rows
        num_new_blocks = sum(len(new.block_ids) for row in rows for new in row.new_blocks)
        num_masks = sum(limits is not None for limits in step.sample.args[1])
        num_bytes = step.forward.num_bytes_down + step.sample.num_bytes_down
        num_mask_bytes = (VOCABULARY // 8 + MASK_BYTES) * num_masks
        assert num_bytes <= MAX_ROW_BYTES * len(rows) + NEW_BLOCK_BYTES * num_new_blocks + num_mask_bytes
        assert step.sample.log.count("copy D2H") == 1


def test_a_step_is_one_replay_with_its_update(run: Run) -> None:
    skip_without_graphs(run)
    assert "capture" in run.warm_up.log
    for step in run.steps:
        assert step.forward.log.count("update") == NUM_LAYERS
        assert step.forward.log.count("replay") == 1
        assert "capture" not in step.forward.log


def test_replays_read_and_write_the_same_memory(run: Run) -> None:
    skip_without_graphs(run)
    assert len(run.addresses) == len(run.steps)
    assert len(set(run.addresses)) == 1


def skip_without_graphs(run: Run) -> None:
    if not run.runner.ops.can_graph:
        pytest.skip("the operations of this chip are not captured")
