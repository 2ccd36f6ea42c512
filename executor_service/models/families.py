# SPDX-License-Identifier: Apache-2.0
"""The architectures that the one decoder runs: a row of data each, as their classes in transformers define them.

What a row leaves open the config's numbers say. Knows no tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from executor_service.models.config_value import ConfigValue

FULL, SLIDING = "full_attention", "sliding_attention"

# More than any model has; a layer's config is some memory.
MAX_LAYERS = 4096


@dataclass(frozen=True)
class Family:
    """keys: of config.json, read by this class beside those that all read. defaults: for keys that are left out."""

    keys: frozenset[str]
    defaults: dict[str, Any]
    # FULL or SLIDING for each layer, where layer_types is not a key of this class or does not list them.
    layer_types: Callable[[ConfigValue], list[str]]
    # Of query, key and value projections, and of the output projection; None: attention_bias says.
    qkv_bias: bool | None = None
    output_bias: bool | None = None
    # Norms of each head's query and key.
    qk_norm: bool = False
    # Norms of what attention and MLP put out, before it is added.
    output_norms: bool = False
    # Norms multiply by 1 + weight, in float32.
    norms_add_one: bool = False
    # Embeddings are multiplied by hidden_size to this power.
    embedding_power: float = 0.0
    activation_key: str = "hidden_act"
    # Rope parameters of each layer type; theta of those that rope_theta is not about.
    rope_thetas: dict[str, float] = field(default_factory=dict)


def num_layers(config: ConfigValue) -> int:
    return config["num_hidden_layers"].whole(high=MAX_LAYERS)


def head_dim(config: ConfigValue) -> int:
    natural = config["hidden_size"].whole() // config["num_attention_heads"].whole()
    return config["head_dim"].default(natural).whole()


def all_full(config: ConfigValue) -> list[str]:
    return [FULL] * num_layers(config)


def all_alike(config: ConfigValue) -> list[str]:
    return [SLIDING if config["sliding_window"].is_given else FULL] * num_layers(config)


def sliding_from_max_window_layers(config: ConfigValue) -> list[str]:
    if not config["use_sliding_window"].default(False).boolean() or not config["sliding_window"].is_given:
        return all_full(config)
    first = config["max_window_layers"].whole(low=0)
    return [FULL if i < first else SLIDING for i in range(num_layers(config))]


def every_nth_full(config: ConfigValue) -> list[str]:
    n = config["sliding_window_pattern"].or_else(config["_sliding_window_pattern"]).default(6).whole()
    return [SLIDING if (i + 1) % n else FULL for i in range(num_layers(config))]


_QWEN_KEYS = frozenset({"layer_types", "max_window_layers", "sliding_window", "use_sliding_window"})
_QWEN_DEFAULTS = {
    "max_position_embeddings": 32_768,
    "max_window_layers": 28,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-6,
    "sliding_window": 4096,
    "use_sliding_window": False,
}

FAMILIES = {
    "Qwen3ForCausalLM": Family(
        keys=_QWEN_KEYS | {"attention_bias", "head_dim"},
        defaults={**_QWEN_DEFAULTS, "head_dim": 128},
        layer_types=sliding_from_max_window_layers,
        qk_norm=True,
    ),
    "Qwen2ForCausalLM": Family(
        keys=_QWEN_KEYS | {"head_dim"},
        defaults=_QWEN_DEFAULTS,
        layer_types=sliding_from_max_window_layers,
        qkv_bias=True,
        output_bias=False,
    ),
    "LlamaForCausalLM": Family(
        keys=frozenset({"attention_bias", "head_dim", "mlp_bias"}),
        defaults={"eos_token_id": 2, "max_position_embeddings": 2_048, "rms_norm_eps": 1e-6},
        layer_types=all_full,
    ),
    "MistralForCausalLM": Family(
        keys=frozenset({"head_dim", "sliding_window"}),
        defaults={
            "eos_token_id": 2,
            "max_position_embeddings": 131_072,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-6,
            "sliding_window": 4096,
        },
        layer_types=all_alike,
        qkv_bias=False,
        output_bias=False,
    ),
    "Gemma3ForCausalLM": Family(
        keys=frozenset(
            {
                "_sliding_window_pattern",
                "attention_bias",
                "attn_logit_softcapping",
                "final_logit_softcapping",
                "head_dim",
                "layer_types",
                "query_pre_attn_scalar",
                "rope_local_base_freq",
                "sliding_window",
                "sliding_window_pattern",
            }
        ),
        defaults={
            "eos_token_id": 1,
            "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "max_position_embeddings": 131_072,
            "num_key_value_heads": 4,
            "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-6,
            "sliding_window": 4096,
            "tie_word_embeddings": True,
        },
        layer_types=every_nth_full,
        qk_norm=True,
        output_norms=True,
        norms_add_one=True,
        embedding_power=0.5,
        activation_key="hidden_activation",
        rope_thetas={FULL: 1_000_000.0, SLIDING: 10_000.0},
    ),
}
