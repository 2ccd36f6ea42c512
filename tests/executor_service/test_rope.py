# SPDX-License-Identifier: Apache-2.0
"""Frequencies and tables have the bits of transformers'."""

from typing import Any

import pytest
import torch

from executor_service.rope import Rope, inverse_frequencies
from executor_service.rope_config import parse_rope
from tests.fixtures.oracle import transformers

CPU = torch.device("cpu")
PARAMETERS: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 10_000.0},
    {"rope_type": "default", "rope_theta": 1_000_000},
    {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 3.0},
    {
        "rope_type": "llama3",
        "rope_theta": 500_000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    {"rope_type": "yarn", "rope_theta": 1_000_000.0, "factor": 4.0, "original_max_position_embeddings": 32_768},
    {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40, "mscale": 1.0, "mscale_all_dim": 0.5, "beta_fast": 16.0},
]


@pytest.mark.parametrize("parameters", PARAMETERS)
@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_tables_are_those_of_transformers(parameters: dict[str, Any], head_dim: int) -> None:
    config = transformers.Qwen3Config(
        head_dim=head_dim, max_position_embeddings=131_072, rope_parameters=dict(parameters)
    )
    oracle = transformers.models.qwen3.modeling_qwen3.Qwen3RotaryEmbedding(config)
    rope = parse_rope({"rope_parameters": parameters}, 131_072)
    assert torch.equal(inverse_frequencies(rope, head_dim), oracle.inv_freq)
    positions = torch.tensor([0, 1, 5, 4_095, 131_071])
    cos, sin = Rope(rope, head_dim, CPU)(positions, torch.float32)
    expected_cos, expected_sin = oracle(torch.empty(0), positions[None])
    assert torch.equal(cos, expected_cos[0])
    assert torch.equal(sin, expected_sin[0])


def test_a_position_has_the_same_bits_alone_and_in_company() -> None:
    rope = Rope(parse_rope({}, 512), 16, CPU)
    positions = torch.arange(500)
    cos, sin = rope(positions, torch.float32)
    for i in (0, 1, 7, 250, 499):
        alone = rope(positions[i : i + 1], torch.float32)
        assert torch.equal(alone[0][0], cos[i])
        assert torch.equal(alone[1][0], sin[i])
