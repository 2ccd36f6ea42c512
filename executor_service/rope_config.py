# SPDX-License-Identifier: Apache-2.0
"""What config.json says about rotary positions, in either spelling.

Old: rope_theta beside rope_scaling {type | rope_type, ...}. New: rope_parameters {rope_type, rope_theta, ...}.
Knows no tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from protos.errors import ConfigError

DEFAULT_THETA = 10_000.0

REQUIRED_PARAMETERS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}
OPTIONAL_PARAMETERS: dict[str, tuple[str, ...]] = {
    "yarn": ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
}
SPELLING = {"rope_type", "type", "rope_theta"}


@dataclass(frozen=True)
class RopeConfig:
    """kind is one of REQUIRED_PARAMETERS; parameters are those it requires, and of the optional ones those given."""

    theta: float = DEFAULT_THETA
    kind: str = "default"
    parameters: dict[str, float] = field(default_factory=dict)


def parse_rope(config: Mapping[str, Any], max_position_embeddings: int) -> RopeConfig:
    """Raises ConfigError naming a kind or parameter that is not supported, or one that is missing."""
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"
    given = {name: value for name, value in (config.get(key) or {}).items() if value is not None}
    spelling = "rope_type" if "rope_type" in given else "type"
    kind = given.get(spelling, "default")
    if kind not in REQUIRED_PARAMETERS:
        raise ConfigError(f'config.json: {key}.{spelling} "{kind}" is not supported ({", ".join(REQUIRED_PARAMETERS)})')
    if "original_max_position_embeddings" in REQUIRED_PARAMETERS[kind]:
        given.setdefault("original_max_position_embeddings", max_position_embeddings)
    theta = given.get("rope_theta", config.get("rope_theta") or DEFAULT_THETA)
    return RopeConfig(float(theta), kind, parse_parameters(key, kind, given))


def parse_parameters(key: str, kind: str, given: Mapping[str, Any]) -> dict[str, float]:
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
