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

from executor_service.config_keys import ARCHITECTURES, GENERATION_WITHOUT_EFFECT, check_keys
from executor_service.rope_config import RopeConfig, parse_rope
from protos.errors import ConfigError

logger = logging.getLogger(__name__)

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class GenerationDefaults:
    """From generation_config.json; None where it says nothing."""

    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None


@dataclass(frozen=True)
class ModelConfig:
    architecture: str
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocabulary_size: int
    rms_norm_eps: float
    max_position_embeddings: int
    rope: RopeConfig
    attention_bias: bool
    mlp_bias: bool
    # Norms of each head's query and key.
    qk_norm: bool
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


def load_model_config(directory: Path) -> ModelConfig:
    """Raises ConfigError naming the file and the key."""
    generation_path = directory / "generation_config.json"
    generation = read_json(generation_path) if generation_path.exists() else {}
    try:
        return parse_model_config(read_json(directory / "config.json"), generation)
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


def parse_model_config(config: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    architecture = parse_architecture(config)
    check_keys(config)
    values = {**ARCHITECTURES[architecture].defaults, **config}
    num_heads, hidden_size = whole(values, "num_attention_heads"), whole(values, "hidden_size")
    max_position_embeddings = whole(values, "max_position_embeddings")
    return ModelConfig(
        architecture=architecture,
        hidden_size=hidden_size,
        intermediate_size=whole(values, "intermediate_size"),
        num_layers=whole(values, "num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=whole(values, "num_key_value_heads", num_heads),
        head_dim=whole(values, "head_dim", hidden_size // num_heads),
        vocabulary_size=whole(values, "vocab_size"),
        rms_norm_eps=float(values["rms_norm_eps"]),
        max_position_embeddings=max_position_embeddings,
        rope=parse_rope(config, max_position_embeddings),
        attention_bias=bool(values.get("attention_bias")),
        mlp_bias=bool(values.get("mlp_bias")),
        qk_norm=ARCHITECTURES[architecture].qk_norm,
        tie_word_embeddings=bool(values.get("tie_word_embeddings")),
        dtype=config.get("dtype") or config.get("torch_dtype") or "float32",
        eos_token_ids=tuple(dict.fromkeys([*token_ids(config), *token_ids(generation)])),
        generation=parse_generation(generation),
    )


def parse_architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures") or []
    if len(names) != 1 or names[0] not in ARCHITECTURES:
        raise ConfigError(f"config.json: architectures {names} is not supported ({', '.join(ARCHITECTURES)})")
    return str(names[0])


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
