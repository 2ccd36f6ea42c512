# SPDX-License-Identifier: Apache-2.0
"""The engine on the device: prompts in chunks, shared prefixes, preemption, captured decode steps, two steps in flight.
Ids are those of the same model on the CPU, each prompt by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executor_service.scheduling.sequence import Sequence
from executor_service.scheduling.step import Step
from tests.fixtures.engine_run import EngineRun, Result
from tests.fixtures.random_model import write_random_model
from tests.fixtures.sequences import make_sequence
from tests.npu import stub
from tests.npu.simulation import Simulation
from tests.npu.suite.decoders import CPU, load_decoder, simulate

BLOCK = 16
CHUNK = 48
NUM_OUTPUT = 32
# Both kinds of chip compute in it; bfloat16 has too few digits for ids to be equal where sums are rounded elsewhere.
DTYPE = torch.float16
# Of the two likeliest ids' logits, whose spread is about 1.5. Roundings are some hundredth of it.
LEAST_MARGIN = 0.01

# Few ids, so that the likeliest is clear of the next.
VOCABULARY = 16
SIZES: dict[str, Any] = {"hidden_size": 128, "head_dim": 128, "vocabulary_size": VOCABULARY, "eos_token_id": 0}
SEED = 21  # whose margins are wide
SHARED = np.random.default_rng(0).integers(0, VOCABULARY, 130).astype(np.int32)
PROMPTS = [SHARED[:70], SHARED, SHARED[100:105], np.concatenate([SHARED[:64], SHARED[:20]]), SHARED[::-1][:33]]


def sequences() -> list[Sequence]:
    return [
        make_sequence(i, token_ids=token_ids.copy(), max_output_tokens=NUM_OUTPUT)
        for i, token_ids in enumerate(PROMPTS)
    ]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shaped as Qwen3."""
    return write_random_model(tmp_path_factory.mktemp("model"), seed=SEED, **SIZES)


@pytest.fixture(scope="module")
def expected(directory: Path) -> dict[int, Result]:
    """Each by itself, on the CPU."""
    decoder = load_decoder(directory, BLOCK, DTYPE, CPU)
    return {i: EngineRun(decoder).run([sequence])[i] for i, sequence in enumerate(sequences())}


@pytest.fixture
def run(directory: Path, simulation: Simulation, device: torch.device) -> EngineRun:
    with simulation, torch.inference_mode():
        decoder = load_decoder(directory, BLOCK, DTYPE, device)
        engine_run = EngineRun(
            decoder,
            max_step_tokens=CHUNK,
            max_sequences=5,
            depth=2,
            preempt={12: 1, 20: 3},
            block_tokens=BLOCK,
            device=device,
            has_graphs=True,
        )
    simulate(engine_run.runner, simulation)
    return engine_run


def test_ids_are_those_of_the_cpu(run: EngineRun, expected: dict[int, Result]) -> None:
    results = run.run(sequences())
    assert {key: result.token_ids for key, result in results.items()} == {
        key: result.token_ids for key, result in expected.items()
    }
    assert all(len(result.token_ids) == NUM_OUTPUT for result in results.values())
    assert run.scheduler.num_preemptions == 2
    assert run.scheduler.num_prefix_hit_tokens >= 64
    assert (stub.counters.replays >= NUM_OUTPUT // 2) == run.runner.ops.can_graph


def test_a_capture_that_fails_leaves_decode_steps_as_they_were(
    run: EngineRun, expected: dict[int, Result], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not run.runner.ops.can_graph:
        pytest.skip("the operations of this chip are not captured")
    monkeypatch.setenv("STUB_FAIL_CAPTURE", "1")
    streams = note_streams(run.runner)
    results = run.run(sequences())
    assert {key: result.token_ids for key, result in results.items()} == {
        key: result.token_ids for key, result in expected.items()
    }
    assert "no decode graph of 5 rows" in caplog.text
    assert (stub.counters.captures, stub.counters.replays) == (1, 0)
    assert streams == {torch.npu.default_stream()}


def note_streams(runner: Any) -> set[Any]:
    """That forward is called on."""
    streams: set[Any] = set()
    forward = runner.forward

    def noting(step: Step) -> object:
        streams.add(torch.npu.current_stream())
        return forward(step)

    runner.forward = noting
    return streams


def test_ids_are_decided_by_more_than_roundings(expected: dict[int, Result]) -> None:
    best = torch.stack([logits for result in expected.values() for logits in result.logits.values()]).topk(2).values
    assert (best[:, 0] - best[:, 1]).min() > LEAST_MARGIN
