# SPDX-License-Identifier: Apache-2.0
"""Frequencies and tables have the bits of transformers'."""

from typing import Any

import pytest
import torch

from executor_service.models.families import FAMILIES, FULL, SLIDING
from executor_service.models.rope import Rope, inverse_frequencies
from executor_service.models.rope_config import RopeConfig, parse_rope
from tests.fixtures.oracle import transformers

CPU = torch.device("cpu")
PARAMETERS: list[dict[str, Any]] = [
    {"rope_type": "default", "rope_theta": 10_000.0},
    {"rope_type": "default", "rope_theta": 1_000_000},
    {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 3.0},
    {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0},
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
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "short_factor": [1.0 + 0.1 * i for i in range(8)],
    "long_factor": [2.0 + i for i in range(8)],
    "original_max_position_embeddings": 4_096,
}


def parsed(max_position_embeddings: int, max_context_tokens: int = 0, **config: Any) -> RopeConfig:
    values = {"max_position_embeddings": max_position_embeddings, "head_dim": 16} | config
    return parse_rope(values, FAMILIES["Qwen3ForCausalLM"], FULL, max_context_tokens)


@pytest.mark.parametrize("parameters", PARAMETERS)
@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_tables_are_those_of_transformers(parameters: dict[str, Any], head_dim: int) -> None:
    config = transformers.Qwen3Config(
        head_dim=head_dim, max_position_embeddings=131_072, rope_parameters=dict(parameters)
    )
    oracle = transformers.models.qwen3.modeling_qwen3.Qwen3RotaryEmbedding(config)
    rope = parsed(131_072, rope_parameters=parameters)
    assert torch.equal(inverse_frequencies(rope, head_dim), oracle.inv_freq)
    assert_same_tables(rope, head_dim, oracle, [0, 1, 5, 4_095, 131_071])


def assert_same_tables(rope: RopeConfig, head_dim: int, oracle: torch.nn.Module, positions: list[int]) -> None:
    cos, sin = Rope(rope, head_dim, CPU)(torch.tensor(positions), torch.float32)
    expected_cos, expected_sin = oracle(torch.empty(0), torch.tensor([positions]))
    assert torch.equal(cos, expected_cos[0])
    assert torch.equal(sin, expected_sin[0])


@pytest.mark.parametrize("extra", [{}, {"factor": 8.0}, {"attention_factor": 1.5}])
def test_longrope_takes_the_factors_of_the_longest_context_that_is_served(extra: dict[str, Any]) -> None:
    """Those of transformers for a sequence within the original context, or for one beyond it, at every position."""
    parameters = LONGROPE | extra
    config = transformers.Qwen3Config(head_dim=16, max_position_embeddings=32_768, rope_parameters=dict(parameters))
    oracle = transformers.models.qwen3.modeling_qwen3.Qwen3RotaryEmbedding(config)
    short = parsed(32_768, 4_096, rope_parameters=parameters)
    assert short.parameters["factors"] == tuple(LONGROPE["short_factor"])
    assert_same_tables(short, 16, oracle, [0, 1, 5, 4_095])
    for max_context_tokens in (0, 4_097):
        long = parsed(32_768, max_context_tokens, rope_parameters=parameters)
        assert long.parameters["factors"] == tuple(LONGROPE["long_factor"])
        assert_same_tables(long, 16, oracle, [0, 1, 5, 4_095, 4_096, 32_767])


def test_the_original_context_may_stand_beside_the_rope() -> None:
    """As Phi-3's configs have it; there it comes first."""
    beside = parsed(32_768, 512, rope_parameters=LONGROPE, original_max_position_embeddings=256)
    assert beside.parameters["factors"] == tuple(LONGROPE["long_factor"])


def test_dynamic_is_plain_up_to_the_context_that_is_served() -> None:
    assert parsed(512, rope_scaling={"type": "dynamic", "factor": 3.7}) == parsed(512)


@pytest.mark.parametrize(
    "keys",
    [
        {"rope_theta": 5e5, "rope_local_base_freq": 1e3, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
        {
            "rope_parameters": {
                FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
                SLIDING: {"rope_type": "default", "rope_theta": 1e3},
            }
        },
    ],
)
def test_layer_types_have_ropes_of_their_own(keys: dict[str, Any]) -> None:
    values, family = {"max_position_embeddings": 512} | keys, FAMILIES["Gemma3ForCausalLM"]
    assert parse_rope(values, family, FULL) == RopeConfig(5e5, "linear", {"factor": 8.0})
    assert parse_rope(values, family, SLIDING) == RopeConfig(1e3)


def test_a_position_has_the_same_bits_alone_and_in_company() -> None:
    rope = Rope(parsed(512), 16, CPU)
    positions = torch.arange(500)
    cos, sin = rope(positions, torch.float32)
    for i in (0, 1, 7, 250, 499):
        alone = rope(positions[i : i + 1], torch.float32)
        assert torch.equal(alone[0][0], cos[i])
        assert torch.equal(alone[1][0], sin[i])
