# SPDX-License-Identifier: Apache-2.0
"""The keys of config.json: which are used, which have no effect on inference, which are fine at one value only.

A key on none of these lists stops the start. Adding an architecture begins here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from protos.errors import ConfigError


@dataclass(frozen=True)
class Architecture:
    qk_norm: bool
    # Of the class in transformers, for keys that its configs leave out.
    defaults: dict[str, Any] = field(default_factory=dict)


ARCHITECTURES = {
    "Qwen3ForCausalLM": Architecture(
        qk_norm=True,
        defaults={
            "head_dim": 128,
            "max_position_embeddings": 32_768,
            "num_key_value_heads": 32,
            "rms_norm_eps": 1e-6,
        },
    ),
    "LlamaForCausalLM": Architecture(
        qk_norm=False,
        defaults={"max_position_embeddings": 2_048, "rms_norm_eps": 1e-6},
    ),
}

USED = {
    "architectures",
    "attention_bias",
    "dtype",
    "eos_token_id",
    "head_dim",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "mlp_bias",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "tie_word_embeddings",
    "torch_dtype",
    "vocab_size",
}

WITHOUT_EFFECT = {
    "_attn_implementation_autoset",
    "_name_or_path",
    "attention_dropout",
    "bos_token_id",
    "chunk_size_feed_forward",
    "id2label",
    "initializer_range",
    "is_llama_config",
    "label2id",
    "max_window_layers",
    "model_type",
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "problem_type",
    "return_dict",
    "sliding_window",
    "transformers_version",
    "unsloth_fixed",
    "use_cache",
}

# Where the key is there, its value is one of these.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "is_encoder_decoder": (False,),
    "partial_rotary_factor": (None, 1),
    "pretraining_tp": (None, 1),
    "quantization_config": (None,),
    "rope_interleaved": (False,),
    "use_sliding_window": (None, False),
}


def check_keys(config: Mapping[str, Any]) -> None:
    """Raises ConfigError naming the first key that is not understood, or not at the one value that is."""
    for key, value in config.items():
        if key in NEUTRAL:
            if value not in NEUTRAL[key]:
                raise ConfigError(f"config.json: {key} {value!r} is not supported ({NEUTRAL[key][-1]!r})")
        elif key == "layer_types":
            check_layer_types(value)
        elif key not in USED and key not in WITHOUT_EFFECT:
            raise ConfigError(f"config.json: {key} is not understood")


def check_layer_types(layer_types: list[str] | None) -> None:
    other = next((kind for kind in layer_types or () if kind != "full_attention"), None)
    if other is not None:
        raise ConfigError(f'config.json: layer_types "{other}" is not supported (full_attention)')


# Of generation_config.json; others outside of what is used are logged.
GENERATION_WITHOUT_EFFECT = {
    "_from_model_config",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "transformers_version",
}
