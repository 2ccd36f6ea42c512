# SPDX-License-Identifier: Apache-2.0
"""What config.json says about rotary positions, in either spelling.

Old: rope_theta beside rope_scaling {type | rope_type, ...}. New: rope_parameters {rope_type, rope_theta, ...}, in some
families one for each layer type. Knows no tensors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from executor_service.models.families import FULL, Family
from protos.errors import ConfigError

DEFAULT_THETA = 10_000.0

REQUIRED_PARAMETERS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
}
OPTIONAL_PARAMETERS: dict[str, tuple[str, ...]] = {
    "yarn": ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    "longrope": ("attention_factor", "factor"),
}
SPELLING = {"rope_type", "type", "rope_theta"}


@dataclass(frozen=True)
class RopeConfig:
    """kind is a key of REQUIRED_PARAMETERS, "dynamic" excepted; parameters are those it requires, and of the optional
    ones those given. Of "longrope" they are {factors, attention_factor}, chosen for the contexts that are served."""

    theta: float = DEFAULT_THETA
    kind: str = "default"
    parameters: dict[str, Any] = field(default_factory=dict, hash=False)


def parse_rope(values: Mapping[str, Any], family: Family, layer_type: str, max_context_tokens: int = 0) -> RopeConfig:
    """Of the layers of one type. values: config.json over the family's defaults. max_context_tokens: the longest
    context that will be served, 0 for the model's own. Raises ConfigError naming a kind or parameter that is not
    supported, or one that is missing.

    Positions never change what is cached, so that what depends on the length of a sequence in transformers is decided
    once. "longrope": the long factors where contexts longer than the original ones are served, for short sequences
    too, as vLLM does; transformers takes them as soon as a sequence is longer. "dynamic": as "default", which it is in
    transformers up to max_position_embeddings; nothing longer is served.
    """
    key, given = given_parameters(values, family, layer_type)
    spelling = "rope_type" if "rope_type" in given else "type"
    kind = given.get(spelling, "default")
    if kind not in REQUIRED_PARAMETERS:
        raise ConfigError(f'config.json: {key}.{spelling} "{kind}" is not supported ({", ".join(REQUIRED_PARAMETERS)})')
    if "original_max_position_embeddings" in REQUIRED_PARAMETERS[kind]:
        given |= original_context(values, given)
    theta, parameters = float(given["rope_theta"]), parse_parameters(key, kind, given)
    if kind == "dynamic":
        return RopeConfig(theta)
    if kind == "longrope":
        parameters = longrope_parameters(key, parameters, values, max_context_tokens)
    return RopeConfig(theta, kind, parameters)


def given_parameters(values: Mapping[str, Any], family: Family, layer_type: str) -> tuple[str, dict[str, Any]]:
    """The key to name in an error, and its parameters, theta among them."""
    if family.rope_thetas:
        return given_for_layer_type(values, family, layer_type)
    key = "rope_scaling" if values.get("rope_scaling") else "rope_parameters"
    given = without_none(values.get(key))
    given.setdefault("rope_theta", values.get("rope_theta") or DEFAULT_THETA)
    return key, given


def given_for_layer_type(values: Mapping[str, Any], family: Family, layer_type: str) -> tuple[str, dict[str, Any]]:
    """The old keys: rope_scaling and rope_theta of full layers, rope_local_base_freq of the others."""
    nested = without_none(values.get("rope_parameters"))
    if unknown := sorted(nested.keys() - family.rope_thetas.keys()):
        raise ConfigError(
            f"config.json: rope_parameters.{unknown[0]} is not supported ({', '.join(family.rope_thetas)})"
        )
    is_full = layer_type == FULL
    scaling = without_none(values.get("rope_scaling")) if is_full else {}
    given = without_none(nested.get(layer_type)) | scaling
    theta = values.get("rope_theta" if is_full else "rope_local_base_freq")
    given.setdefault("rope_theta", theta or family.rope_thetas[layer_type])
    return "rope_scaling" if scaling else f"rope_parameters.{layer_type}", given


def original_context(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Beside the rope's own keys, where it is there, it comes first."""
    name = "original_max_position_embeddings"
    return {name: values.get(name) or given.get(name) or values["max_position_embeddings"]}


def without_none(given: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: value for name, value in (given or {}).items() if value is not None}


def parse_parameters(key: str, kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    missing = [name for name in REQUIRED_PARAMETERS[kind] if name not in given]
    if missing:
        raise ConfigError(f'config.json: {key}.{missing[0]} is missing, rope "{kind}" needs it')
    known = {*REQUIRED_PARAMETERS[kind], *OPTIONAL_PARAMETERS.get(kind, ())}
    for name, value in given.items():
        if name == "partial_rotary_factor" and value == 1:
            continue
        if name not in known | SPELLING:
            raise ConfigError(f'config.json: {key}.{name} is not supported with rope "{kind}"')
    return {name: value for name, value in given.items() if name in known}


def longrope_parameters(
    key: str, given: Mapping[str, Any], values: Mapping[str, Any], max_context_tokens: int
) -> dict[str, Any]:
    """Microsoft's LongRoPE, section 3; the factor of cos and sin is that of Phi-3."""
    original, longest = given["original_max_position_embeddings"], values["max_position_embeddings"]
    name = "long_factor" if (max_context_tokens or longest) > original else "short_factor"
    head_dim = values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"]
    if len(given[name]) != head_dim // 2:
        raise ConfigError(f"config.json: {key}.{name} has {len(given[name])} entries, head_dim {head_dim} needs half")
    growth = given.get("factor", longest / original)
    natural = math.sqrt(1 + math.log(growth) / math.log(original)) if growth > 1 else 1.0
    return {"factors": tuple(given[name]), "attention_factor": given.get("attention_factor", natural)}
