# SPDX-License-Identifier: Apache-2.0
"""How far each layer of a config sees: all that is before it, or a window. Knows no rope and no tensors."""

from __future__ import annotations

from executor_service.models.config_value import ConfigValue
from executor_service.models.families import FULL, SLIDING, Family
from protos.errors import ConfigError


def parse_layer_types(family: Family, config: ConfigValue) -> list[str]:
    """FULL or SLIDING for each layer."""
    own, listed = family.layer_types(config), config["layer_types"]
    if not listed.is_given:
        return own
    kinds = [kind.one_of((FULL, SLIDING)) for kind in listed.elements(len(own))]
    if "layer_types" not in family.keys and kinds != own:
        raise ConfigError(f"config.json: layer_types is not understood in this architecture, all are {own[0]}")
    return kinds


def parse_window(config: ConfigValue) -> int | None:
    """Tokens that a query sees in SLIDING layers; None where no context outgrows it."""
    use = config["use_sliding_window"]
    if use.is_given and not use.boolean():
        raise ConfigError(f"config.json: layer_types has {SLIDING}, use_sliding_window is false")
    window = config["sliding_window"].whole()
    return window if window < config["max_position_embeddings"].whole() else None
