# SPDX-License-Identifier: Apache-2.0
"""What a model directory says about its decoder: config.json and generation_config.json, checked and frozen.

Every key is used, or known to have no effect, or known and at the value that has none; any other stops the start by
its name. An absent key takes the default of the architecture's class in transformers. Knows no tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executor_service.models.config_keys import check_keys
from executor_service.models.config_value import ConfigValue
from executor_service.models.families import FAMILIES, SLIDING, Family, head_dim
from executor_service.models.generation_config import GenerationDefaults, parse_generation
from executor_service.models.layer_types import parse_layer_types, parse_window
from executor_service.models.quantization import parse_quantization
from executor_service.models.rope_config import RopeConfig, parse_rope
from protos.errors import ConfigError
from protos.vocabulary import read_json

DTYPES = ("float32", "bfloat16", "float16")
# By the value of the family's activation key.
ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


@dataclass(frozen=True)
class LayerConfig:
    """What one layer need not have in common with the others. window: tokens that a query sees, itself included; None
    for all before it."""

    window: int | None
    rope: RopeConfig


@dataclass(frozen=True)
class ModelConfig:
    architecture: str
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocabulary_size: int
    rms_norm_eps: float
    max_position_embeddings: int
    layers: tuple[LayerConfig, ...]
    # One of the values of ACTIVATIONS.
    activation: str
    # What embeddings, and queries times keys, are multiplied by.
    embedding_scale: float
    attention_scale: float
    # Bounds of attention scores and logits: cap * tanh(x / cap).
    attention_cap: float | None
    logit_cap: float | None
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    # Norms of each head's query and key.
    qk_norm: bool
    # Norms of what attention and MLP put out, before it is added.
    output_norms: bool
    # Norms multiply by 1 + weight, in float32.
    norms_add_one: bool
    tie_word_embeddings: bool
    # As the checkpoint was meant to run; one of DTYPES.
    dtype: str
    # Of the layers' products: "none" or "w8a8".
    quantization: str
    eos_token_ids: tuple[int, ...]
    generation: GenerationDefaults

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"config.json: num_attention_heads {self.num_heads} is not a multiple of "
                f"num_key_value_heads {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ConfigError(f"config.json: head_dim {self.head_dim} is odd, rotary positions turn pairs")


def load_model_config(directory: Path, max_context_tokens: int = 0) -> ModelConfig:
    """max_context_tokens: the longest context that will be served; 0 for the model's own. Raises ConfigError naming the
    file and the key."""
    config = read_json(directory / "config.json")
    if not config:
        raise ConfigError(f"{directory}: has no config.json, or an empty one")
    return parse_model_config(config, read_json(directory / "generation_config.json"), max_context_tokens)


def parse_model_config(
    config_json: Mapping[str, Any], generation_json: Mapping[str, Any], max_context_tokens: int = 0
) -> ModelConfig:
    architecture = parse_architecture(ConfigValue("config.json", config_json))
    family = FAMILIES[architecture]
    check_keys(config_json, family)
    config = ConfigValue("config.json", {**family.defaults, **config_json})
    generation = ConfigValue("generation_config.json", generation_json)
    hidden_size, num_heads = config["hidden_size"].whole(), config["num_attention_heads"].whole()
    vocabulary_size = config["vocab_size"].whole()
    has_bias = config["attention_bias"].default(False).boolean()
    eos_token_ids = [*parse_token_ids(config, vocabulary_size), *parse_token_ids(generation, vocabulary_size)]
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden_size,
        intermediate_size=config["intermediate_size"].whole(),
        num_heads=num_heads,
        num_kv_heads=config["num_key_value_heads"].default(num_heads).whole(),
        head_dim=head_dim(config),
        vocabulary_size=vocabulary_size,
        rms_norm_eps=config["rms_norm_eps"].positive(),
        max_position_embeddings=config["max_position_embeddings"].whole(),
        layers=parse_layers(family, config, max_context_tokens),
        activation=ACTIVATIONS[config[family.activation_key].default("silu").one_of(ACTIVATIONS)],
        embedding_scale=hidden_size**family.embedding_power,
        attention_scale=parse_attention_scale(family, config),
        attention_cap=parse_cap(config["attn_logit_softcapping"]),
        logit_cap=parse_cap(config["final_logit_softcapping"]),
        qkv_bias=has_bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=has_bias if family.output_bias is None else family.output_bias,
        mlp_bias=config["mlp_bias"].default(False).boolean(),
        qk_norm=family.qk_norm,
        output_norms=family.output_norms,
        norms_add_one=family.norms_add_one,
        tie_word_embeddings=config["tie_word_embeddings"].default(False).boolean(),
        dtype=config["dtype"].or_else(config["torch_dtype"]).default("float32").one_of(DTYPES),
        quantization=parse_quantization(config["quantization_config"]),
        eos_token_ids=tuple(dict.fromkeys(eos_token_ids)),
        generation=parse_generation(generation),
    )


def parse_architecture(config: ConfigValue) -> str:
    [name] = config["architectures"].default([]).elements(1)
    return name.one_of(FAMILIES)


def parse_layers(family: Family, config: ConfigValue, max_context_tokens: int) -> tuple[LayerConfig, ...]:
    kinds = parse_layer_types(family, config)
    ropes = {kind: parse_rope(config, family, kind, max_context_tokens) for kind in dict.fromkeys(kinds)}
    window = parse_window(config) if SLIDING in kinds else None
    return tuple(LayerConfig(window if kind == SLIDING else None, ropes[kind]) for kind in kinds)


def parse_attention_scale(family: Family, config: ConfigValue) -> float:
    key = "query_pre_attn_scalar"
    return float((config[key].positive() if key in family.keys else head_dim(config)) ** -0.5)


def parse_cap(value: ConfigValue) -> float | None:
    return value.positive() if value.is_given else None


def parse_token_ids(config: ConfigValue, vocabulary_size: int) -> Iterator[int]:
    """eos_token_id, which is one id, a list or null. The sampler may have to forbid it: each has a row of the table."""
    value = config["eos_token_id"].default([])
    for each in value.elements() if isinstance(value.given, list) else [value]:
        yield each.token_id(vocabulary_size)
