# SPDX-License-Identifier: Apache-2.0
"""A whole model on these kernels: the logits of prompts, chunks and single tokens are the reference's."""

from pathlib import Path

import pytest
import torch

import kernels
from executor_service.models.decoder import Decoder
from executor_service.models.model_config import load_model_config
from executor_service.models.weights import load_weights
from kernels import Shape
from kernels import reference as ops
from tests.fixtures.decoding import BLOCK_TOKENS, Rows
from tests.fixtures.random_model import write_random_model
from tests.kernels.triton import DEVICE

CPU = torch.device("cpu")
STEPS = [{0: list(range(60)), 1: [7]}, {0: [3], 1: [9, 8, 7], 2: [1, 2]}, {0: [5], 1: [6], 2: [4]}]


@pytest.mark.skipif(DEVICE.type != "cpu", reason="the fixture's rows lie on the CPU")
@pytest.mark.parametrize("architecture", ["Qwen3ForCausalLM", "Gemma3ForCausalLM"])
def test_logits_of_mixed_steps(architecture: str, tmp_path: Path) -> None:
    write_random_model(tmp_path, architecture=architecture)
    config = load_model_config(tmp_path)
    heads = config.num_heads, config.num_kv_heads, config.head_dim
    backend = kernels.load("triton", CPU, Shape(*heads, BLOCK_TOKENS, torch.float32))
    weights = load_weights(tmp_path, config, torch.float32, CPU)
    rows, expected = (Rows(Decoder(config, weights, each), 3, 64) for each in (backend, ops))
    for step in STEPS:
        got, logits = rows.forward(step), expected.forward(step)
        for row in step:
            torch.testing.assert_close(got[row], logits[row], rtol=1e-4, atol=1e-4)
