# SPDX-License-Identifier: Apache-2.0
"""One value of config.json or generation_config.json with its name, checked for type and range where it is read.

Every error is one line: the file, the key, the value and what it must be. Does not know what a value is for.
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from protos.errors import ConfigError

# Counts, positions and ids are int32 somewhere on their way.
MIN_WHOLE, MAX_WHOLE = -(2**31), 2**31 - 1
# float32 holds them with room for what they are multiplied by.
MIN_POSITIVE, MAX_NUMBER = 1e-30, 1e30


@dataclass(frozen=True)
class ConfigValue:
    """given: None where the key is absent, and where it is null. key: "" for all of the file, "a.b[2]" within."""

    file: str
    given: Any
    key: str = ""

    def __getitem__(self, key: str) -> ConfigValue:
        return ConfigValue(self.file, self.entries().get(key), f"{self.key}.{key}" if self.key else key)

    def __str__(self) -> str:
        return f"{self.file}: {self.key}"

    @property
    def is_given(self) -> bool:
        return self.given is not None

    def default(self, value: Any) -> ConfigValue:
        return self if self.is_given else replace(self, given=value)

    def or_else(self, other: ConfigValue) -> ConfigValue:
        return self if self.is_given else other

    def entries(self) -> dict[str, Any]:
        """Of an object, without those that are null; none where it is not given."""
        given = self.default({}).given
        if not isinstance(given, Mapping):
            raise self.refusal("must be an object")
        return {key: value for key, value in given.items() if value is not None}

    def elements(self, count: int | None = None) -> list[ConfigValue]:
        """Of a list; count: how many there have to be."""
        if not isinstance(self.given, list):
            raise self.refusal("must be a list")
        if count is not None and len(self.given) != count:
            raise ConfigError(f"{self} has {len(self.given)} entries, must have {count}")
        return [ConfigValue(self.file, each, f"{self.key}[{i}]") for i, each in enumerate(self.given)]

    def whole(self, low: int = 1, high: int = MAX_WHOLE) -> int:
        return int(self._in_range(int, f"a whole number in [{low}, {high}]", low, high))

    def number(self, low: float = -MAX_NUMBER, high: float = MAX_NUMBER) -> float:
        return float(self._in_range((int, float), f"a number in [{low:g}, {high:g}]", low, high))

    def positive(self) -> float:
        return self.number(MIN_POSITIVE)

    def token_id(self, vocabulary_size: int) -> int:
        wanted = f"in the model's vocabulary [0, {vocabulary_size})"
        return int(self._in_range(int, wanted, 0, vocabulary_size - 1))

    def boolean(self) -> bool:
        if not isinstance(self.given, bool):
            raise self.refusal("must be true or false")
        return self.given

    def one_of(self, choices: Collection[str]) -> str:
        if not isinstance(self.given, str) or self.given not in choices:
            raise self.refusal(f"must be one of {', '.join(choices)}")
        return self.given

    def refusal(self, wanted: str) -> ConfigError:
        return ConfigError(f"{self} is {shown(self.given)}, {wanted}" if self.is_given else f"{self} is missing")

    def _in_range(self, kinds: type | tuple[type, ...], wanted: str, low: float, high: float) -> Any:
        """NaN is in no range, and true is no number."""
        is_number = isinstance(self.given, kinds) and not isinstance(self.given, bool)
        if not is_number or not low <= self.given <= high:
            raise self.refusal(f"must be {wanted}")
        return self.given


def shown(value: object) -> str:
    """Short, whatever it is."""
    return reprlib.repr(value)
