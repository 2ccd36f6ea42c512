# SPDX-License-Identifier: Apache-2.0
"""The architectures of GGUF files that are converted: what each one's metadata and tensors are called and mean.

A row of data each, as llama.cpp's converter writes them. Knows no files.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from protos.errors import ConfigError

Metadata = dict[str, Any]

TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True)
class Architecture:
    """keys: of the metadata, behind the architecture's name, each with its key in config.json; None where that is made
    of something else."""

    keys: dict[str, str | None]
    config: Metadata
    layer_names: dict[str, str]
    # Rows of query and key projections are in llama.cpp's order.
    permutes_heads: bool = False
    # Norms hold 1 + weight.
    adds_one_to_norms: bool = False
    # The one value of a key at which the rest is right.
    required: Metadata = field(default_factory=dict)


COMMON_KEYS: dict[str, str | None] = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
    "vocab_size": None,
}

ARCHITECTURES = {
    "llama": Architecture(
        keys=COMMON_KEYS | {"rope.dimension_count": "head_dim"},
        config={
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "rope_theta": 10_000.0,
        },
        layer_names=LAYER_NAMES,
        permutes_heads=True,
    ),
    "gemma3": Architecture(
        keys=COMMON_KEYS
        | {
            "attention.key_length": "head_dim",
            "attention.sliding_window": "sliding_window",
            "attention.value_length": None,
        },
        config={
            "architectures": ["Gemma3ForCausalLM"],
            "model_type": "gemma3_text",
            "hidden_activation": "gelu_pytorch_tanh",
            "query_pre_attn_scalar": 256,
            "attention_bias": False,
            "rope_theta": 1_000_000.0,
            "rope_local_base_freq": 10_000.0,
            "sliding_window_pattern": 6,
        },
        layer_names=LAYER_NAMES
        | {
            "attn_q_norm": "self_attn.q_norm",
            "attn_k_norm": "self_attn.k_norm",
            "post_attention_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        },
        adds_one_to_norms=True,
        # What queries are multiplied by is not in the file. It is 256^-0.5 in all sizes but the one with other heads.
        required={"attention.key_length": 256, "attention.value_length": 256},
    ),
}


def architecture_of(metadata: Metadata) -> tuple[Architecture, Metadata]:
    """With its own part of the metadata. Raises ConfigError naming what is not understood."""
    name = metadata["general.architecture"]
    if name not in ARCHITECTURES:
        raise ConfigError(f"general.architecture={name}: only {' and '.join(ARCHITECTURES)} are converted")
    architecture = ARCHITECTURES[name]
    own = {key.removeprefix(f"{name}."): value for key, value in metadata.items() if key.startswith(f"{name}.")}
    if unknown := sorted(own.keys() - architecture.keys.keys()):
        raise ConfigError(f"{name}.{unknown[0]}={own[unknown[0]]}: not understood")
    for key, value in architecture.required.items():
        if own.get(key) != value:
            raise ConfigError(f"{name}.{key}={own.get(key)}: only {value} is converted")
    return architecture, own
