# SPDX-License-Identifier: Apache-2.0
"""Frequencies and tables have the bits of transformers'."""

from typing import Any

import pytest
import torch

from executor_service.models.config_value import ConfigValue
from executor_service.models.families import FAMILIES, FULL, SLIDING
from executor_service.models.rope import Rope, inverse_frequencies
from executor_service.models.rope_config import RopeConfig, parse_rope
from protos.errors import ConfigError
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
    heads = {"hidden_size": 64, "num_attention_heads": 4, "head_dim": 16}
    values = {"max_position_embeddings": max_position_embeddings} | heads | config
    qwen = FAMILIES["Qwen3ForCausalLM"]
    return parse_rope(ConfigValue("config.json", values), qwen, FULL, max_context_tokens)


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
    cos, sin = Rope(rope, head_dim, torch.float32, CPU)(torch.tensor(positions))
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
    values, family = ConfigValue("config.json", {"max_position_embeddings": 512} | keys), FAMILIES["Gemma3ForCausalLM"]
    assert parse_rope(values, family, FULL) == RopeConfig(5e5, "linear", {"factor": 8.0})
    assert parse_rope(values, family, SLIDING) == RopeConfig(1e3)


def test_a_position_has_the_same_bits_alone_and_in_company() -> None:
    rope = Rope(parsed(512), 16, torch.float32, CPU)
    positions = torch.arange(500)
    cos, sin = rope(positions)
    for i in (0, 1, 7, 250, 499):
        alone = rope(positions[i : i + 1])
        assert torch.equal(alone[0][0], cos[i])
        assert torch.equal(alone[1][0], sin[i])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tabulated_positions_have_the_bits_of_computed_ones(dtype: torch.dtype) -> None:
    positions = torch.tensor([0, 499, 7, 7, 250], dtype=torch.int32)
    computed, tabulated = (Rope(parsed(512), 16, dtype, CPU, n)(positions) for n in (0, 500))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(computed, tabulated, strict=True))


LLAMA3 = PARAMETERS[4]
YARN = PARAMETERS[5]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rope_theta": 0}, r"rope_theta is 0, must be a number in \[2, 1e\+30\]"),
        ({"rope_theta": -1}, "rope_theta is -1, must"),
        ({"rope_theta": float("inf")}, "rope_theta is inf, must"),
        ({"rope_theta": 10**400}, r"rope_theta is 1000.*\.\.\..*000, must"),
        ({"rope_scaling": ["x"]}, r"rope_scaling is \['x'\], must be an object"),
        ({"rope_scaling": "x"}, "rope_scaling is 'x', must be an object"),
        ({"rope_scaling": 5}, "rope_scaling is 5, must be an object"),
        ({"rope_parameters": [1]}, r"rope_parameters is \[1\], must be an object"),
        ({"rope_scaling": {"type": ["yarn"]}}, r"rope_scaling.type is \['yarn'\], must be one of default, linear"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, r"rope_scaling.factor is 0, must be a number in \[1e-30, "),
        ({"rope_scaling": {"type": "linear", "factor": -2}}, "factor is -2, must"),
        ({"rope_scaling": {"type": "linear", "factor": "8"}}, "factor is '8', must"),
        ({"rope_scaling": {"type": "dynamic", "factor": 0}}, "factor is 0, must"),
        ({"rope_parameters": LLAMA3 | {"low_freq_factor": 0}}, "rope_parameters.low_freq_factor is 0, must"),
        (
            {"rope_parameters": LLAMA3 | {"high_freq_factor": 1}},
            "high_freq_factor is 1, must be above low_freq_fa",
        ),
        ({"rope_parameters": YARN | {"factor": 0}}, "factor is 0, must"),
        ({"rope_parameters": YARN | {"factor": float("inf")}}, "factor is inf, must"),
        ({"rope_parameters": YARN | {"beta_fast": "x"}}, "beta_fast is 'x', must"),
        ({"rope_parameters": YARN | {"beta_slow": 40}}, "beta_fast is 32, must be above beta_slow 40"),
        ({"rope_parameters": YARN | {"mscale": -1}}, r"mscale is -1, must be a number in \[0, 1e\+30\]"),
        ({"rope_parameters": YARN | {"truncate": "no"}}, "truncate is 'no', must be true or false"),
        ({"rope_parameters": LONGROPE, "original_max_position_embeddings": 1}, r"embeddings is 1, must .* \[2, "),
        ({"rope_parameters": LONGROPE | {"long_factor": ["x"] * 8}}, r"long_factor\[0\] is 'x', must"),
        ({"rope_parameters": LONGROPE | {"short_factor": [1] * 7 + [0]}}, r"short_factor\[7\] is 0, must"),
        ({"rope_parameters": LONGROPE | {"short_factor": 5}}, "short_factor is 5, must be a list"),
        ({"rope_parameters": LONGROPE | {"attention_factor": 0}}, "attention_factor is 0, must"),
    ],
)
def test_a_value_that_makes_no_frequencies_is_named(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"^config\.json: .*{message}"):
        parsed(32_768, **keys)


def test_a_layer_types_rope_is_an_object() -> None:
    values = ConfigValue("config.json", {"rope_parameters": {FULL: 5}})
    with pytest.raises(ConfigError, match=r"rope_parameters\.full_attention is 5, must be an object"):
        parse_rope(values, FAMILIES["Gemma3ForCausalLM"], FULL)
