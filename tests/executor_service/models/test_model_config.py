# SPDX-License-Identifier: Apache-2.0
"""A model directory's config is understood as a whole, or the start stops and names the key."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from executor_service.models.generation_config import GenerationDefaults
from executor_service.models.model_config import ModelConfig, load_model_config, parse_model_config
from protos.errors import ConfigError
from tests.fixtures.random_model import random_config, write_random_model


def parse(generation: dict[str, Any] | None = None, **overrides: Any) -> ModelConfig:
    return parse_model_config(random_config(**overrides), generation or {})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, r"architectures\[0\] is 'GPT2LMHeadModel', must be one of Qwen3For"),
        ({"architectures": ...}, "architectures has 0 entries, must have 1"),
        ({"clip_qkv": 8}, "clip_qkv is not understood"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', must be one of silu, gelu_pytorch_tanh"),
        ({"hidden_activation": "silu"}, "hidden_activation is not understood"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention, use_sliding_window is false"),
        (
            {"layer_types": ["full_attention", "chunked_attention"]},
            r"layer_types\[1\] is 'chunked_attention', must",
        ),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries, must have 2"),
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
            "use_bidirectional_attention is True, must be False",
        ),
        (
            {"architecture": "Gemma3ForCausalLM", "rope_parameters": {"rope_type": "default"}},
            r"rope_parameters.rope_type is not supported \(full_attention, sliding_attention\)",
        ),
        (
            {"architecture": "Gemma3ForCausalLM", "rope_parameters": {"sliding_attention": {"rope_type": "foo"}}},
            "rope_parameters.sliding_attention.rope_type is 'foo', must be one of",
        ),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config.quant_method is 'gptq', must be"),
        ({"pretraining_tp": 2}, "pretraining_tp is 2, must be 1"),
        ({"dtype": "float64"}, "dtype is 'float64', must be one of float32, bfloat16, float16"),
        ({"intermediate_size": ...}, "intermediate_size is missing"),
        ({"vocab_size": -1}, r"vocab_size is -1, must be a whole number in \[1, 2147483647\]"),
        ({"num_kv_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        (
            {"rope_scaling": {"type": "foo"}},
            "rope_scaling.type is 'foo', must be one of default, linear, dynamic, llama3, yarn, longrope",
        ),
        (
            {"rope_parameters": {"rope_type": "proportional"}},
            "rope_parameters.rope_type is 'proportional', must",
        ),
        ({"rope_parameters": {"rope_type": "longrope"}}, "short_factor is missing"),
        (
            {"rope_parameters": {"rope_type": "longrope", "short_factor": [1], "long_factor": [1]}},
            "rope_parameters.short_factor has 1 entries, must have 8",
        ),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor is missing"),
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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no config.json"),
        ("{}", "has no config.json, or an empty one"),
        ("{", r"config\.json: not JSON: Expecting"),
        ("[]", r"config\.json: holds a list"),
        ("[" * 100_000, r"config\.json: nested too deeply"),
    ],
)
def test_a_config_that_can_not_be_read_is_named(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError, match=message):
        load_model_config(tmp_path)


@pytest.mark.parametrize("value", [320, 100_000, 2**40, -1, 1.5, True, "5", {}])
def test_an_end_id_outside_the_vocabulary_is_refused(value: Any) -> None:
    """The sampler has no score of it that it could forbid."""
    wanted = rf"is {re.escape(repr(value))}, must be in the model's vocabulary \[0, 320\)$"
    with pytest.raises(ConfigError, match=rf"^config\.json: eos_token_id {wanted}"):
        parse(eos_token_id=value)
    with pytest.raises(ConfigError, match=rf"^generation_config\.json: eos_token_id\[1\] {wanted}"):
        parse({"eos_token_id": [319, value]})


def test_an_end_id_in_a_list_is_not_null() -> None:
    with pytest.raises(ConfigError, match=r"eos_token_id\[0\] is missing"):
        parse(eos_token_id=[None])


GEMMA = {"architecture": "Gemma3ForCausalLM"}
NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("key", "values", "wanted"),
    [
        ("rms_norm_eps", [-1, 0, NAN, INFINITY, "1e-6", [], True, 10**400], r"a number in \[1e-30, 1e\+30\]"),
        ("query_pre_attn_scalar", [0, -16, "x", INFINITY, []], "a number in"),
        ("attn_logit_softcapping", [0, -1, "x", NAN, [], True], "a number in"),
        ("final_logit_softcapping", [0, -1, "x", NAN, [], True], "a number in"),
        ("sliding_window_pattern", [0, -1, 2.5, "2", []], "a whole number in"),
        ("sliding_window", [0, -1, "x", 1.5, True, 10**30], "a whole number in"),
        ("num_hidden_layers", [0, "7", 2**31 - 1], r"a whole number in \[1, 4096\]"),
        ("max_position_embeddings", [0, 10**12, "512"], r"a whole number in \[1, 2147483647\]"),
        ("tie_word_embeddings", ["false", 0, []], "true or false"),
        ("attention_bias", ["false", 1], "true or false"),
        ("architectures", ["Gemma3ForCausalLM", 5], "a list"),
        ("architectures", [[["x"]], [{}]], "one of"),
        ("layer_types", ["full_attention", 5, {"a": 1}], "a list"),
        ("layer_types", [[["a"], {}], [5, 5]], "one of full_attention, sliding_attention"),
        ("hidden_activation", [["silu"], 5, {}], "one of"),
        ("dtype", [["float32"], 5, {}], "one of"),
    ],
)
def test_a_value_of_another_type_or_outside_its_range_is_named(key: str, values: list[Any], wanted: str) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=rf"^config\.json: {key}(\[0\])? is .+, must be {wanted}") as raised:
            parse(**GEMMA, **{key: value})
        assert len(str(raised.value)) < 200


@pytest.mark.parametrize("value", [None, "1", [1]])
def test_layers_that_see_all_are_counted(value: Any) -> None:
    with pytest.raises(ConfigError, match="max_window_layers is "):
        parse(use_sliding_window=True, sliding_window=5, max_window_layers=value)


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("do_sample", "no", "true or false"),
        ("top_k", 50.0, "a whole number in"),
        ("top_k", 2**40, "a whole number in"),
        ("temperature", True, "a number in"),
        ("temperature", "1", "a number in"),
        ("top_p", NAN, "a number in"),
        ("min_p", INFINITY, "a number in"),
        ("repetition_penalty", [], "a number in"),
    ],
)
def test_a_generation_default_of_another_type_is_named(key: str, value: Any, wanted: str) -> None:
    with pytest.raises(ConfigError, match=rf"^generation_config\.json: {key} is .+, must be {wanted}"):
        parse({key: value})


def test_one_spelling_or_another_is_one_config() -> None:
    whole = parse(**GEMMA, final_logit_softcapping=30, query_pre_attn_scalar=16, rms_norm_eps=1)
    assert whole == parse(**GEMMA, final_logit_softcapping=30.0, query_pre_attn_scalar=16.0, rms_norm_eps=1.0)
    assert isinstance(whole.logit_cap, float)
