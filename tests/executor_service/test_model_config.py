# SPDX-License-Identifier: Apache-2.0
"""A model directory's config is understood as a whole, or the start stops and names the key."""

import json
from pathlib import Path
from typing import Any

import pytest

from executor_service.model_config import GenerationDefaults, ModelConfig, load_model_config, parse_model_config
from protos.errors import ConfigError
from tests.fixtures.random_model import random_config, write_random_model


def parse(generation: dict[str, Any] | None = None, **overrides: Any) -> ModelConfig:
    return parse_model_config(random_config(**overrides), generation or {})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, r"architectures \['GPT2LMHeadModel'\] is not supported \(Qwen3For"),
        ({"architectures": ...}, r"architectures \[\] is not supported"),
        ({"clip_qkv": 8}, "clip_qkv is not understood"),
        ({"hidden_act": "gelu"}, r"hidden_act 'gelu' is not supported \('silu'\)"),
        ({"use_sliding_window": True}, "use_sliding_window True is not supported"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, 'layer_types "sliding_attention" is not supported'),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config .* is not supported"),
        ({"pretraining_tp": 2}, "pretraining_tp 2 is not supported"),
        ({"dtype": "float64"}, r'dtype "float64" is not supported \(float32, bfloat16, float16\)'),
        ({"intermediate_size": ...}, "intermediate_size is missing"),
        ({"vocab_size": -1}, "vocab_size is -1, must be a whole number above 0"),
        ({"num_kv_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        (
            {"rope_scaling": {"type": "foo"}},
            r'rope_scaling.type "foo" is not supported \(default, linear, llama3, yarn\)',
        ),
        ({"rope_parameters": {"rope_type": "longrope"}}, 'rope_parameters.rope_type "longrope" is not supported'),
        ({"rope_scaling": {"rope_type": "linear"}}, 'rope_scaling.factor is missing, rope "linear" needs it'),
        (
            {"rope_parameters": {"rope_theta": 1e4, "mrope_section": [1]}},
            "rope_parameters.mrope_section is not supported",
        ),
    ],
)
def test_what_is_not_understood_is_named(overrides: dict[str, Any], message: str) -> None:
    """B53 for the kinds of rope."""
    with pytest.raises(ConfigError, match=message):
        parse(**overrides)


def test_keys_without_effect_are_accepted() -> None:
    config = parse(
        initializer_range=0.02,
        use_cache=True,
        transformers_version="5.0",
        sliding_window=4096,
        max_window_layers=28,
        use_sliding_window=False,
        attention_dropout=0.0,
        pretraining_tp=1,
        layer_types=["full_attention"] * 2,
        rope_scaling=None,
    )
    assert config == parse()


def test_null_and_absent_counts_are_derived() -> None:
    """B55."""
    llama = parse(architecture="LlamaForCausalLM", head_dim=None, num_key_value_heads=...)
    assert (llama.head_dim, llama.num_kv_heads) == (16, 4)
    assert parse(hidden_size=320).head_dim == 16


def test_end_ids_are_the_union_of_both_files() -> None:
    assert parse({"eos_token_id": [259, 257]}).eos_token_ids == (257, 259)
    assert parse({"eos_token_id": 258}, eos_token_id=[1, 2]).eos_token_ids == (1, 2, 258)
    assert parse(eos_token_id=None).eos_token_ids == ()


def test_generation_defaults_are_those_given(caplog: pytest.LogCaptureFixture) -> None:
    generation = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "typical_p": 0.5}
    assert parse(generation).generation == GenerationDefaults(True, 0.6, 20, 0.95)
    assert "generation_config.json: typical_p is not used" in caplog.text
    assert parse().generation == GenerationDefaults()


def test_dtype_by_either_name() -> None:
    assert parse(dtype=..., torch_dtype="float16").dtype == "float16"
    assert parse(dtype="bfloat16", torch_dtype="float16").dtype == "bfloat16"
    assert parse(dtype=...).dtype == "float32"


def test_both_files_are_read(tmp_path: Path) -> None:
    write_random_model(tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": 300, "top_k": 5}))
    config = load_model_config(tmp_path)
    assert config.eos_token_ids == (257, 300)
    assert config.generation.top_k == 5


@pytest.mark.parametrize(("content", "message"), [(None, "No such file"), ("{", "Expecting"), ("[]", "holds a list")])
def test_a_config_that_can_not_be_read_is_named(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=rf"config\.json: {message}"):
        load_model_config(tmp_path)
