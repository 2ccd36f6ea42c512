# SPDX-License-Identifier: Apache-2.0
"""Same logits whatever the company: a row's are bit-equal alone, in any batch, chunking and thread count, and when
another executor goes on with it. Through the real scheduler, packing and model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import kernels
from executor_service.blocks import BlockPool
from executor_service.decoder import Decoder
from executor_service.forward_batch import ForwardBatch, KvCache
from executor_service.model_config import load_model_config
from executor_service.runner import DeviceRunner
from executor_service.scheduler import Scheduler
from executor_service.sequence import Sampling, Sequence
from executor_service.step import Step
from executor_service.weights import load_weights
from tests.fixtures.random_model import write_random_model
from tests.fixtures.sequences import make_sequence

CPU = torch.device("cpu")
CHUNK = 32
NUM_OUTPUT = 6
# Logits by (request id, output position).
Logits = dict[tuple[int, int], torch.Tensor]


class RecordingModel:
    """The model as it is; keeps a copy of what it computed."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self.last: torch.Tensor

    def forward(self, batch: ForwardBatch, cache: KvCache) -> torch.Tensor:
        self.last = self.decoder.forward(batch, cache)
        return self.last

    def new_cache(self, num_blocks: int, block_tokens: int, device: torch.device) -> KvCache:
        return self.decoder.new_cache(num_blocks, block_tokens, device)


@pytest.fixture(scope="module", params=["Qwen3ForCausalLM", "LlamaForCausalLM"])
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    directory: Path = tmp_path_factory.mktemp("model")
    write_random_model(directory, request.param)
    config = load_model_config(directory)
    return Decoder(config, load_weights(directory, config, torch.float32, CPU), kernels.load("reference"))


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def request(i: int, sampled: bool = False) -> Sequence:
    """Prompts around and across chunk and block edges."""
    length = [1, 15, 16, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 3 * CHUNK + 5, 300][i]
    token_ids = np.random.default_rng(i).integers(0, 256, length).astype(np.int32)
    return make_sequence(
        i,
        token_ids=token_ids,
        num_known=length,
        num_prompt_tokens=length,
        max_output_tokens=NUM_OUTPUT,
        sampling=Sampling(temperature=0.9, seed=i) if sampled else Sampling(),
    )


def run(
    decoder: Decoder,
    sequences: list[Sequence],
    max_step_tokens: int = 512,
    num_blocks: int = 128,
    is_preempting: bool = False,
) -> Logits:
    model = RecordingModel(decoder)
    scheduler = Scheduler(BlockPool(num_blocks, 16), max_step_tokens, max_sequences=16)
    runner = DeviceRunner(model, num_blocks, 16, CPU)
    for sequence in sequences:
        scheduler.add(sequence)
    logits: Logits = {}
    while step := scheduler.schedule():
        launched = runner.forward(step)
        logits |= by_row(step, model.last)
        scheduler.commit(step, runner.sampled(launched))
    assert scheduler.pool.num_used == 0
    assert (scheduler.num_preemptions > 0) is is_preempting
    return logits


def by_row(step: Step, logits: torch.Tensor) -> Logits:
    wanted = [row for row in step.rows if row.sampling]
    return {(row.key.request_id, row.output_position): logits[i].clone() for i, row in enumerate(wanted)}


def assert_equal(actual: Logits, expected: Logits, request_ids: Iterable[int]) -> None:
    """Every output position of each request."""
    assert set(actual) == {(i, position) for i in request_ids for position in range(NUM_OUTPUT)}
    assert [key for key in actual if not torch.equal(actual[key], expected[key])] == []


@pytest.fixture(scope="module")
def alone(decoder: Decoder) -> Logits:
    """Each request by itself, its prompt in one step, on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    logits: Logits = {}
    for i in range(9):
        logits |= run(decoder, [request(i)])
    torch.set_num_threads(before)
    assert len(logits) == 9 * NUM_OUTPUT
    return logits


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("size", range(2, 10))
def test_in_a_batch(decoder: Decoder, alone: Logits, size: int, num_threads: int) -> None:
    torch.set_num_threads(num_threads)
    assert_equal(run(decoder, [request(i) for i in range(size)]), alone, range(size))
    last = range(9 - size, 9)
    assert_equal(run(decoder, [request(i) for i in reversed(last)]), alone, last)


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("chunk", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK])
def test_in_chunks(decoder: Decoder, alone: Logits, chunk: int, num_threads: int) -> None:
    torch.set_num_threads(num_threads)
    assert_equal(run(decoder, [request(8)], max_step_tokens=chunk), alone, [8])
    assert_equal(run(decoder, [request(i) for i in range(9)], max_step_tokens=chunk), alone, range(9))


def test_when_preempted(decoder: Decoder, alone: Logits) -> None:
    """Blocks fill up while rows decode: the youngest is computed again, from its own output too."""
    order = (7, 6, 5, 4)  # 101, 64, 33 and 32 tokens, then 6 each: 17 blocks, of which 16 are there
    logits = run(decoder, [request(i) for i in order], max_step_tokens=512, num_blocks=16, is_preempting=True)
    assert_equal(logits, alone, order)


@pytest.mark.parametrize("num_known", range(1, NUM_OUTPUT))
def test_when_another_executor_goes_on(decoder: Decoder, alone: Logits, num_known: int) -> None:
    """The row is handed over half-way as known tokens; the second one has neighbours of its own."""
    first = request(7)
    run(decoder, [first])
    prompt = first.num_prompt_tokens
    known = make_sequence(
        7,
        token_ids=first.token_ids[: prompt + num_known].copy(),
        num_known=prompt + num_known,
        num_prompt_tokens=prompt,
        max_output_tokens=NUM_OUTPUT,
    )
    logits = run(decoder, [request(3), known, request(5)], max_step_tokens=CHUNK)
    logits |= {(7, position): alone[7, position] for position in range(num_known)}  # delivered by the first
    assert_equal(logits, alone, [3, 7, 5])


def test_sampled_ids_do_not_depend_on_company(decoder: Decoder) -> None:
    """Mixed greedy and sampled rows in one step."""

    def ids(sequences: list[Sequence]) -> dict[int, list[int]]:
        run(decoder, sequences, max_step_tokens=CHUNK + 1)
        return {s.key.request_id: s.token_ids[s.num_prompt_tokens : s.num_known].tolist() for s in sequences}

    together = ids([request(i, sampled=i % 2 == 0) for i in range(8)])
    apart: dict[int, list[int]] = {}
    for i in range(8):
        apart |= ids([request(i, sampled=i % 2 == 0)])
    assert together == apart
