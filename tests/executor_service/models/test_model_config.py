# SPDX-License-Identifier: Apache-2.0
"""A model directory's config is understood as a whole, or the start stops and names the key."""

import json
from pathlib import Path
from typing import Any

import pytest

from executor_service.models.model_config import GenerationDefaults, ModelConfig, load_model_config, parse_model_config
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
        ({"hidden_act": "gelu"}, r'hidden_act "gelu" is not supported \(silu, gelu_pytorch_tanh\)'),
        ({"hidden_activation": "silu"}, "hidden_activation is not understood"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention, use_sliding_window is false"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, 'layer_types "chunked_attention" is not supported'),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries, num_hidden_layers is 2"),
        (
            {"use_sliding_window": True, "layer_types": ["sliding_attention"] * 2, "sliding_window": None},
            "sliding_window is missing",
        ),
        (
            {"architecture": "LlamaForCausalLM", "sliding_window": 64},
            "sliding_window 64 is not understood in this arch",
        ),
        (
            {"architecture": "MistralForCausalLM", "sliding_window": 64, "layer_types": ["full_attention"] * 2},
            "layer_types is not understood in this architecture, all are sliding_attention",
        ),
        ({"architecture": "Qwen2ForCausalLM", "attention_bias": True}, "attention_bias True is not understood"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping 30.0 is not understood"),
        (
            {"architecture": "Gemma3ForCausalLM", "use_bidirectional_attention": True},
            "use_bidirectional_attention True",
        ),
        (
            {"architecture": "Gemma3ForCausalLM", "rope_parameters": {"rope_type": "default"}},
            r"rope_parameters.rope_type is not supported \(full_attention, sliding_attention\)",
        ),
        (
            {"architecture": "Gemma3ForCausalLM", "rope_parameters": {"sliding_attention": {"rope_type": "foo"}}},
            'rope_parameters.sliding_attention.rope_type "foo" is not supported',
        ),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config .* is not supported"),
        ({"pretraining_tp": 2}, "pretraining_tp 2 is not supported"),
        ({"dtype": "float64"}, r'dtype "float64" is not supported \(float32, bfloat16, float16\)'),
        ({"intermediate_size": ...}, "intermediate_size is missing"),
        ({"vocab_size": -1}, "vocab_size is -1, must be a whole number above 0"),
        ({"num_kv_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        (
            {"rope_scaling": {"type": "foo"}},
            r'rope_scaling.type "foo" is not supported \(default, linear, dynamic, llama3, yarn, longrope\)',
        ),
        ({"rope_parameters": {"rope_type": "proportional"}}, 'rope_parameters.rope_type "proportional" is not supp'),
        ({"rope_parameters": {"rope_type": "longrope"}}, 'short_factor is missing, rope "longrope" needs it'),
        (
            {"rope_parameters": {"rope_type": "longrope", "short_factor": [1], "long_factor": [1]}},
            "rope_parameters.short_factor has 1 entries, head_dim 16 needs half",
        ),
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
    generation = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.1}
    generation |= {"repetition_penalty": 1.1, "typical_p": 0.5}
    assert parse(generation).generation == GenerationDefaults(True, 0.6, 20, 0.95, 0.1, 1.1)
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
