# SPDX-License-Identifier: Apache-2.0
"""The keys of config.json: which are used, which have no effect on inference, which are fine at one value only.

A key on none of these lists, nor read by the family, stops the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from executor_service.models.config_value import shown
from executor_service.models.families import FAMILIES, Family
from protos.errors import ConfigError

# By every family.
USED = {
    "architectures",
    "dtype",
    "eos_token_id",
    "hidden_size",
    "intermediate_size",
    "layer_types",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "original_max_position_embeddings",
    "quantization_config",
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
    "cache_implementation",
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
    "transformers_version",
    "unsloth_fixed",
    "use_cache",
}

# Where the key is there, its value is one of these.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "is_encoder_decoder": (False,),
    "partial_rotary_factor": (None, 1),
    "pretraining_tp": (None, 1),
    "rope_interleaved": (False,),
    "use_bidirectional_attention": (None, False),
}

# Keys that a family does not read may be there if they ask for nothing.
_OF_SOME_FAMILY = frozenset[str]().union(*(family.keys for family in FAMILIES.values()))


def check_keys(config: Mapping[str, Any], family: Family) -> None:
    """Raises ConfigError naming the first key that is not understood, or not at the one value that is."""
    used = USED | family.keys | {family.activation_key}
    for key, value in config.items():
        if key in NEUTRAL:
            if value not in NEUTRAL[key]:
                raise ConfigError(f"config.json: {key} is {shown(value)}, must be {NEUTRAL[key][-1]!r}")
        elif key in used or key in WITHOUT_EFFECT:
            continue
        elif key not in _OF_SOME_FAMILY:
            raise ConfigError(f"config.json: {key} is not understood")
        elif value not in (None, False):
            raise ConfigError(f"config.json: {key} {shown(value)} is not understood in this architecture")
