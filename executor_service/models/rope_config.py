# SPDX-License-Identifier: Apache-2.0
"""What config.json says about rotary positions, in either spelling.

Old: rope_theta beside rope_scaling {type | rope_type, ...}. New: rope_parameters {rope_type, rope_theta, ...}, in some
families one for each layer type. Knows no tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from executor_service.models.config_value import ConfigValue
from executor_service.models.families import FULL, Family, head_dim
from protos.errors import ConfigError

DEFAULT_THETA = 10_000.0
# Frequencies fall from one dimension to the next.
MIN_THETA = 2.0


def _context(value: ConfigValue) -> int:
    """Tokens; there is a logarithm of them to divide by."""
    return value.whole(low=2)


def _factors(value: ConfigValue) -> tuple[float, ...]:
    return tuple(factor.positive() for factor in value.elements())


def _not_negative(value: ConfigValue) -> float:
    return value.number(low=0)


Reader = Callable[[ConfigValue], Any]
_POSITIVE: Reader = ConfigValue.positive

# By the kind of rope: each parameter, and how it is read.
REQUIRED_PARAMETERS: dict[str, dict[str, Reader]] = {
    "default": {},
    "linear": {"factor": _POSITIVE},
    "dynamic": {"factor": _POSITIVE},
    "llama3": {
        "factor": _POSITIVE,
        "low_freq_factor": _POSITIVE,
        "high_freq_factor": _POSITIVE,
        "original_max_position_embeddings": _context,
    },
    "yarn": {"factor": _POSITIVE, "original_max_position_embeddings": _context},
    "longrope": {"short_factor": _factors, "long_factor": _factors, "original_max_position_embeddings": _context},
}
OPTIONAL_PARAMETERS: dict[str, dict[str, Reader]] = {
    "yarn": {
        "attention_factor": _POSITIVE,
        "beta_fast": _POSITIVE,
        "beta_slow": _POSITIVE,
        "mscale": _not_negative,
        "mscale_all_dim": _not_negative,
        "truncate": ConfigValue.boolean,
    },
    "longrope": {"attention_factor": _POSITIVE, "factor": _POSITIVE},
}
DEFAULT_PARAMETERS: dict[str, dict[str, Any]] = {"yarn": {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True}}
SPELLING = {"rope_type", "type", "rope_theta"}
# The first is below the second.
ORDERED_PARAMETERS = (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast"))


@dataclass(frozen=True)
class RopeConfig:
    """kind is a key of REQUIRED_PARAMETERS, "dynamic" excepted; parameters are those it requires, and of the optional
    ones those given or with a default. Of "longrope" they are {factors, attention_factor}, chosen for the contexts that
    are served."""

    theta: float = DEFAULT_THETA
    kind: str = "default"
    parameters: dict[str, Any] = field(default_factory=dict, hash=False)


def parse_rope(config: ConfigValue, family: Family, layer_type: str, max_context_tokens: int = 0) -> RopeConfig:
    """Of the layers of one type. config: config.json over the family's defaults. max_context_tokens: the longest
    context that will be served, 0 for the model's own. Raises ConfigError naming a kind or parameter that is not
    supported, one that is missing, or one that is out of its range.

    Positions never change what is cached, so that what depends on the length of a sequence in transformers is decided
    once. "longrope": the long factors where contexts longer than the original ones are served, for short sequences
    too, as vLLM does; transformers takes them as soon as a sequence is longer. "dynamic": as "default", which it is in
    transformers up to max_position_embeddings; nothing longer is served.
    """
    rope = given_for_layer_type(config, family, layer_type) if family.rope_thetas else given_for_all(config)
    kind = rope["rope_type"].or_else(rope["type"]).default("default").one_of(REQUIRED_PARAMETERS)
    theta, parameters = rope["rope_theta"].number(low=MIN_THETA), parse_parameters(kind, rope, config)
    if kind == "dynamic":
        return RopeConfig(theta)
    if kind == "longrope":
        parameters = longrope_parameters(rope, parameters, config, max_context_tokens)
    return RopeConfig(theta, kind, parameters)


def given_for_all(config: ConfigValue) -> ConfigValue:
    """rope_scaling where it says anything, else rope_parameters; theta among them."""
    old = config["rope_scaling"]
    return with_theta(old if old.entries() else config["rope_parameters"], config["rope_theta"].default(DEFAULT_THETA))


def given_for_layer_type(config: ConfigValue, family: Family, layer_type: str) -> ConfigValue:
    """The old keys: rope_scaling and rope_theta of full layers, rope_local_base_freq of the others."""
    nested = config["rope_parameters"]
    if unknown := sorted(nested.entries().keys() - family.rope_thetas.keys()):
        raise ConfigError(f"{nested}.{unknown[0]} is not supported ({', '.join(family.rope_thetas)})")
    is_full, rope = layer_type == FULL, nested[layer_type]
    if is_full and (scaling := config["rope_scaling"].entries()):
        rope = replace(config["rope_scaling"], given=rope.entries() | scaling)
    theta = config["rope_theta" if is_full else "rope_local_base_freq"]
    return with_theta(rope, theta.default(family.rope_thetas[layer_type]))


def with_theta(rope: ConfigValue, beside: ConfigValue) -> ConfigValue:
    """Of the file where the rope itself has none."""
    return replace(rope, given={"rope_theta": beside.number(low=MIN_THETA)} | rope.entries())


def parse_parameters(kind: str, rope: ConfigValue, config: ConfigValue) -> dict[str, Any]:
    required, optional = REQUIRED_PARAMETERS[kind], OPTIONAL_PARAMETERS.get(kind, {})
    rope = replace(rope, given=DEFAULT_PARAMETERS.get(kind, {}) | rope.entries())
    given = rope.entries()
    for name, value in given.items():
        if name not in required.keys() | optional.keys() | SPELLING and (name, value) != ("partial_rotary_factor", 1):
            raise ConfigError(f'{rope}.{name} is not supported with rope "{kind}"')
    read = required | {name: reader for name, reader in optional.items() if name in given}
    parameters = {name: reader(find_parameter(name, rope, config)) for name, reader in read.items()}
    for less, more in ORDERED_PARAMETERS:
        if more in parameters and parameters[less] >= parameters[more]:
            raise ConfigError(f"{rope}.{more} is {parameters[more]:g}, must be above {less} {parameters[less]:g}")
    return parameters


def find_parameter(name: str, rope: ConfigValue, config: ConfigValue) -> ConfigValue:
    """The original context beside the rope's own keys, where it is there, comes first."""
    if name != "original_max_position_embeddings":
        return rope[name]
    return config[name].or_else(rope[name]).or_else(config["max_position_embeddings"])


def longrope_parameters(
    rope: ConfigValue, given: Mapping[str, Any], config: ConfigValue, max_context_tokens: int
) -> dict[str, Any]:
    """Microsoft's LongRoPE, section 3; the factor of cos and sin is that of Phi-3."""
    original, longest = given["original_max_position_embeddings"], config["max_position_embeddings"].whole()
    name = "long_factor" if (max_context_tokens or longest) > original else "short_factor"
    rope[name].elements(head_dim(config) // 2)
    growth = given.get("factor", longest / original)
    natural = math.sqrt(1 + math.log(growth) / math.log(original)) if growth > 1 else 1.0
    return {"factors": given[name], "attention_factor": given.get("attention_factor", natural)}
