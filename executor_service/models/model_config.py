# SPDX-License-Identifier: Apache-2.0
"""What a model directory says about its decoder: config.json and generation_config.json, checked and frozen.

Every key is used, or known to have no effect, or known and at the value that has none; any other stops the start by
its name. An absent key takes the default of the architecture's class in transformers. Knows no tensors.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from executor_service.models.config_keys import GENERATION_WITHOUT_EFFECT, check_keys
from executor_service.models.families import FAMILIES, FULL, SLIDING, Family
from executor_service.models.rope_config import RopeConfig, parse_rope
from protos.errors import ConfigError

logger = logging.getLogger(__name__)

DTYPES = ("float32", "bfloat16", "float16")
# By the value of the family's activation key.
ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


@dataclass(frozen=True)
class GenerationDefaults:
    """From generation_config.json; None where it says nothing."""

    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


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
        if self.dtype not in DTYPES:
            raise ConfigError(f'config.json: dtype "{self.dtype}" is not supported ({", ".join(DTYPES)})')


def load_model_config(directory: Path, max_context_tokens: int = 0) -> ModelConfig:
    """max_context_tokens: the longest context that will be served; 0 for the model's own. Raises ConfigError naming the
    file and the key."""
    generation_path = directory / "generation_config.json"
    generation = read_json(generation_path) if generation_path.exists() else {}
    try:
        return parse_model_config(read_json(directory / "config.json"), generation, max_context_tokens)
    except (TypeError, ValueError, KeyError) as error:
        raise ConfigError(f"config.json or generation_config.json: {type(error).__name__}: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: holds a {type(value).__name__}, not an object")
    return value


def parse_model_config(
    config: Mapping[str, Any], generation: Mapping[str, Any], max_context_tokens: int = 0
) -> ModelConfig:
    architecture = parse_architecture(config)
    family = FAMILIES[architecture]
    check_keys(config, family)
    values = {**family.defaults, **config}
    num_heads, hidden_size = whole(values, "num_attention_heads"), whole(values, "hidden_size")
    head_dim = whole(values, "head_dim", hidden_size // num_heads)
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden_size,
        intermediate_size=whole(values, "intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=whole(values, "num_key_value_heads", num_heads),
        head_dim=head_dim,
        vocabulary_size=whole(values, "vocab_size"),
        rms_norm_eps=float(values["rms_norm_eps"]),
        max_position_embeddings=whole(values, "max_position_embeddings"),
        layers=parse_layers(family, values, max_context_tokens),
        activation=parse_activation(family, values),
        embedding_scale=hidden_size**family.embedding_power,
        attention_scale=values.get("query_pre_attn_scalar", head_dim) ** -0.5,
        attention_cap=values.get("attn_logit_softcapping"),
        logit_cap=values.get("final_logit_softcapping"),
        qkv_bias=bool(values.get("attention_bias") if family.qkv_bias is None else family.qkv_bias),
        output_bias=bool(values.get("attention_bias") if family.output_bias is None else family.output_bias),
        mlp_bias=bool(values.get("mlp_bias")),
        qk_norm=family.qk_norm,
        output_norms=family.output_norms,
        norms_add_one=family.norms_add_one,
        tie_word_embeddings=bool(values.get("tie_word_embeddings")),
        dtype=config.get("dtype") or config.get("torch_dtype") or "float32",
        eos_token_ids=tuple(dict.fromkeys([*token_ids(values), *token_ids(generation)])),
        generation=parse_generation(generation),
    )


def parse_architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures") or []
    if len(names) != 1 or names[0] not in FAMILIES:
        raise ConfigError(f"config.json: architectures {names} is not supported ({', '.join(FAMILIES)})")
    return str(names[0])


def parse_activation(family: Family, values: Mapping[str, Any]) -> str:
    name = values.get(family.activation_key, "silu")
    if name not in ACTIVATIONS:
        raise ConfigError(f'config.json: {family.activation_key} "{name}" is not supported ({", ".join(ACTIVATIONS)})')
    return ACTIVATIONS[name]


def parse_layers(family: Family, values: Mapping[str, Any], max_context_tokens: int) -> tuple[LayerConfig, ...]:
    kinds = parse_layer_types(family, values)
    ropes = {kind: parse_rope(values, family, kind, max_context_tokens) for kind in dict.fromkeys(kinds)}
    window = parse_window(values) if SLIDING in kinds else None
    return tuple(LayerConfig(window if kind == SLIDING else None, ropes[kind]) for kind in kinds)


def parse_layer_types(family: Family, values: Mapping[str, Any]) -> list[str]:
    num_layers = whole(values, "num_hidden_layers")
    own, listed = family.layer_types(values), values.get("layer_types")
    if listed is None:
        return own
    if other := next((kind for kind in listed if kind not in (FULL, SLIDING)), None):
        raise ConfigError(f'config.json: layer_types "{other}" is not supported ({FULL}, {SLIDING})')
    if len(listed) != num_layers:
        raise ConfigError(f"config.json: layer_types has {len(listed)} entries, num_hidden_layers is {num_layers}")
    if "layer_types" not in family.keys and listed != own:
        raise ConfigError(f"config.json: layer_types is not understood in this architecture, all are {own[0]}")
    return list(listed)


def parse_window(values: Mapping[str, Any]) -> int | None:
    """None where no context outgrows it."""
    if not values.get("use_sliding_window", True):
        raise ConfigError(f"config.json: layer_types has {SLIDING}, use_sliding_window is false")
    window = whole(values, "sliding_window")
    return window if window < whole(values, "max_position_embeddings") else None


def whole(values: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A count above zero; default stands for an absent key and for null."""
    value = default if values.get(key) is None else values[key]
    if value is None:
        raise ConfigError(f"config.json: {key} is missing")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigError(f"config.json: {key} is {value!r}, must be a whole number above 0")
    return value


def token_ids(config: Mapping[str, Any]) -> list[int]:
    """eos_token_id, which is one id, a list or null."""
    value = config.get("eos_token_id")
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [int(value)]


def parse_generation(generation: Mapping[str, Any]) -> GenerationDefaults:
    names = GenerationDefaults.__dataclass_fields__
    for key in generation:
        if key not in names and key not in GENERATION_WITHOUT_EFFECT:
            logger.warning("generation_config.json: %s is not used", key)
    return GenerationDefaults(**{name: generation[name] for name in names if generation.get(name) is not None})
