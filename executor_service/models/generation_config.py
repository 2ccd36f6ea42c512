# SPDX-License-Identifier: Apache-2.0
"""What generation_config.json says about sampling. Ranges are those of a request's fields, checked with them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from executor_service.models.config_value import MIN_WHOLE, ConfigValue

logger = logging.getLogger(__name__)

# Others outside of what is used are logged.
WITHOUT_EFFECT = {
    "_from_model_config",
    "bos_token_id",
    "cache_implementation",
    "eos_token_id",
    "pad_token_id",
    "transformers_version",
}


@dataclass(frozen=True)
class GenerationDefaults:
    """None where the file says nothing."""

    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


def parse_generation(generation: ConfigValue) -> GenerationDefaults:
    """Raises ConfigError naming a value of another type."""
    names = GenerationDefaults.__dataclass_fields__
    given = generation.entries()
    for key in sorted(given.keys() - names - WITHOUT_EFFECT):
        logger.warning("generation_config.json: %s is not used", key)
    return GenerationDefaults(**{name: _parse(generation[name]) for name in names if name in given})


def _parse(value: ConfigValue) -> Any:
    match value.key:
        case "do_sample":
            return value.boolean()
        case "top_k":
            return value.whole(MIN_WHOLE)
        case _:
            return value.number()
