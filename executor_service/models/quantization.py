# SPDX-License-Identifier: Apache-2.0
"""config.json's quantization_config: the one kind that is read and written, W8A8 of compressed-tensors.

Weights of the layers' products are int8 with a scale for each output, what they multiply is rounded as it comes. Any
other key or value stops the start by its name. Knows no tensors.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from typing import Any

from executor_service.models.config_value import ConfigValue
from protos.errors import ConfigError

NONE, W8A8 = "none", "w8a8"

# Values that have to be there.
INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
FORMAT = {"format": "int-quantized"}  # of a group too, where it says
GROUP = {
    **FORMAT,
    "targets": ["Linear"],
    "weights": {**INT8, "strategy": "channel", "dynamic": False},
    "input_activations": {**INT8, "strategy": "token", "dynamic": True},
}
# Linear is any matrix product; the head stays as it is, tied or not.
OF_ALL: dict[str, Any] = {"quant_method": "compressed-tensors", **FORMAT, "ignore": ["lm_head"]}
# What `packserve quantize` writes.
CONFIG = {**OF_ALL, "quantization_status": "compressed", "config_groups": {"group_0": GROUP}}

# How scales were found, and by which version: of these types, any value.
WITHOUT_EFFECT: dict[str, tuple[type, ...]] = {
    "global_compression_ratio": (int, float),
    "observer": (str,),
    "observer_kwargs": (dict,),
    "quantization_status": (str,),
    "version": (str,),
}


def parse_quantization(config: ConfigValue) -> str:
    """NONE where config is not given, else W8A8. Raises ConfigError naming a key and its value."""
    if not config.is_given:
        return NONE
    check(config, OF_ALL, also={"config_groups"})
    groups = config["config_groups"]
    if len(groups.entries()) != 1:
        raise ConfigError(f"{groups} has {len(groups.entries())} entries, must have 1")
    (group,) = (groups[name] for name in groups.entries())
    check(replace(group, given=FORMAT | group.entries()), GROUP)
    return W8A8


def check(config: ConfigValue, expected: dict[str, Any], also: Set[str] = frozenset()) -> None:
    """The expected values are there, of their JSON type: neither 8.0 for 8 nor 1 for true. Of other keys, those of also
    may be, and those that ask for nothing."""
    for key, value in expected.items():
        if isinstance(value, dict):
            check(config[key], value)
        elif type(config[key].given) is not type(value) or config[key].given != value:
            raise config[key].refusal(f"must be {value!r}")
    for key, value in config.entries().items():
        types = WITHOUT_EFFECT.get(key)
        is_understood = type(value) in types if types else value in ({}, [])
        if key not in expected and key not in also and not is_understood:
            raise config[key].refusal("not understood")
