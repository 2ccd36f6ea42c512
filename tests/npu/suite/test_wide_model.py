# SPDX-License-Identifier: Apache-2.0
"""A long prompt through two layers of Qwen3-14B's widths: what goes down, and how large a buffer there is. Nothing is
computed, so weights are whatever the memory holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import kernels
from executor_service.device import step_inputs
from executor_service.device.runner import DeviceRunner
from executor_service.models.decoder import Decoder
from executor_service.models.model_config import parse_model_config
from executor_service.models.weights import Places
from executor_service.scheduling.step import Step
from tests.fixtures.engine_run import EngineRun
from tests.fixtures.random_model import random_config
from tests.fixtures.sequences import make_sequence
from tests.npu.suite.calls import watch
from tests.npu.suite.decoders import shape_of

BLOCK = 128
PROMPT = 4096
WINDOW = 512
NUM_OUTPUT = 5
HIDDEN = 5120
CONFIG = random_config(
    hidden_size=HIDDEN,
    num_heads=40,
    num_kv_heads=8,
    head_dim=128,
    intermediate_size=17408,
    vocabulary_size=152_064,
    max_position_embeddings=8192,
)
# Ids, positions and the number of the row, for each token; the rest of a step is of its rows.
ARRAYS_OF_TOKENS = 3
MAX_STEP_BYTES = 1024


class Seen:
    """tables: where embedding tables lay; num_id_bytes: of ids that were sent; num_bytes_kept: on the device, after
    each step was launched."""

    def __init__(self) -> None:
        self.tables: set[int] = set()
        self.num_id_bytes: list[int] = []
        self.num_bytes_kept: list[int] = []


def spy(runner: DeviceRunner, monkeypatch: pytest.MonkeyPatch) -> Seen:
    seen = Seen()
    embed, upload, forward = runner.ops.embed_rms_norm, step_inputs.upload, runner.forward
    warm_up = runner.warm_up

    def embed_rms_norm(table: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
        seen.tables.add(table.data_ptr())
        return embed(table, *args)

    def upload_ids(arrays: list[Any], *args: Any) -> list[Tensor]:
        seen.num_id_bytes.append(arrays[0].nbytes)
        return upload(arrays, *args)

    def forward_and_measure(step: Step) -> object:
        launched = forward(step)
        seen.num_bytes_kept.append(torch.npu.memory_allocated())
        return launched

    def warm_up_and_give_back(max_step_tokens: int) -> None:
        warm_up(max_step_tokens)
        torch.npu.empty_cache()
        seen.num_id_bytes.clear()
        seen.num_bytes_kept.clear()

    monkeypatch.setattr(runner, "forward", forward_and_measure)
    monkeypatch.setattr(runner, "warm_up", warm_up_and_give_back)
    monkeypatch.setattr(runner.ops, "embed_rms_norm", embed_rms_norm)
    monkeypatch.setattr(step_inputs, "upload", upload_ids)
    return seen


@pytest.fixture
def decoder(device: torch.device, dtype: torch.dtype) -> Decoder:
    config = parse_model_config(CONFIG, {})
    ops = kernels.load("npu", device, shape_of(config, BLOCK, dtype))
    with torch.inference_mode():
        weights = Places(dtype, device, norm_dtype=dtype).decoder(config, has_head=True)
        return Decoder(config, weights, ops, config.max_position_embeddings)


def test_a_long_prompt_goes_down_as_ids(
    decoder: Decoder, device: torch.device, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = EngineRun(
        decoder,
        num_blocks=64,
        max_step_tokens=WINDOW,
        max_sequences=2,
        depth=2,
        block_tokens=BLOCK,
        device=device,
        has_graphs=True,
    )
    seen = spy(run.runner, monkeypatch)
    calls = watch(run.runner)
    results = run.run([make_sequence(0, token_ids=np.arange(PROMPT, dtype=np.int32), max_output_tokens=NUM_OUTPUT)])
    assert len(results[0].token_ids) == NUM_OUTPUT

    windows = [call for call in calls if call.name == "forward" and call.args[0].num_tokens > 1]
    assert [call.args[0].num_tokens for call in windows] == [WINDOW] * (PROMPT // WINDOW)
    assert sum(seen.num_id_bytes[: len(windows)]) == 16_384
    for call in windows:
        assert call.num_bytes_down <= ARRAYS_OF_TOKENS * 4 * WINDOW + MAX_STEP_BYTES
    assert max(call.largest_copy for call in calls) < WINDOW * HIDDEN
    assert len(seen.tables) == 1
    num_prompt_bytes = PROMPT * HIDDEN * dtype.itemsize
    assert max(call.largest_malloc for call in calls[1:]) < num_prompt_bytes
    assert max(seen.num_bytes_kept) - min(seen.num_bytes_kept) < WINDOW * HIDDEN * dtype.itemsize
