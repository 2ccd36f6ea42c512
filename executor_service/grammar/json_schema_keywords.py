# SPDX-License-Identifier: Apache-2.0
"""Every keyword of JSON Schema 2020-12 that is taken, with what its value has to be; all others are refused.

Which keywords the grammar library enforces was found by experiment against the jsonschema package, and is held by
tests. Does not know how a schema becomes a grammar.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

from executor_service.grammar.patterns import check_pattern

# Say something about a schema, and nothing about its instances.
ANNOTATIONS = frozenset(
    ["title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated", "readOnly", "writeOnly"]
)
# Hold schemas that are reached by $ref only; "definitions" is the older name.
DEFINITIONS = frozenset({"$defs", "definitions"})
SCHEMA = ("items", "additionalProperties")
SCHEMA_LISTS = ("prefixItems",)
SCHEMA_MAPS = ("properties", "patternProperties")
# They add to what stands beside them, in this order: it is the order of an object's properties.
APPLICATORS = ("allOf", "anyOf", "oneOf")

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
# An integer that a double holds exactly, and the digits that one always keeps: the library counts with doubles.
MAX_INTEGER = 2**53
MAX_DIGITS = 15
MAX_EXPONENT = 15
MAX_COUNT = 100_000

Check = Callable[[Any], str | None]


def check_number(value: Any) -> str | None:
    """What is wrong with a number that a bound, a constant or a divisor may be; None where nothing is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "must be a number"
    if isinstance(value, int):
        return None if abs(value) <= MAX_INTEGER else f"must be within {MAX_INTEGER} of 0"
    _, digits, exponent = Decimal(repr(value)).as_tuple()
    if not isinstance(exponent, int):
        return "must be finite"
    if len(digits) > MAX_DIGITS or abs(exponent) > MAX_EXPONENT:
        return f"must have at most {MAX_DIGITS} digits and an exponent within {MAX_EXPONENT}"
    return None


def check_constant(value: Any) -> str | None:
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int | float):
        return check_number(value)
    if isinstance(value, str):
        return check_string(value)
    if isinstance(value, dict):
        return next(filter(None, map(check_string, value)), None) or check_constants([*value.values()])
    return check_constants(value)


def check_constants(values: Any) -> str | None:
    return next(filter(None, map(check_constant, values)), None)


def check_string(value: str) -> str | None:
    """The grammars leave out characters that JSON only writes as \\uXXXX: so a key has one spelling."""
    odd = next((c for c in value if c == "\x7f" or (c < " " and c not in "\n\r\t\b\f")), None)
    return None if odd is None else f"holds the control character {odd!r}"


def check_name(value: Any) -> str | None:
    """Of a property. Keys that are compared with it have one spelling each."""
    return check_string(value) if isinstance(value, str) else "must be strings"


def _check_enum(value: Any) -> str | None:
    return check_constants(value) if isinstance(value, list) and value else "must be a list of at least one value"


def _check_type(value: Any) -> str | None:
    names = value if isinstance(value, list) else [value]
    is_known = bool(names) and all(isinstance(name, str) and name in TYPES for name in names)
    return None if is_known and len({*names}) == len(names) else f"must be one or more of {', '.join(TYPES)}"


def _check_divisor(value: Any) -> str | None:
    return check_number(value) or (None if value > 0 else "must be above 0")


def _check_count(value: Any) -> str | None:
    is_number = not isinstance(value, bool) and isinstance(value, int | float)
    is_count = is_number and 0 <= value <= MAX_COUNT and value == int(value)
    return None if is_count else f"must be a whole number from 0 to {MAX_COUNT}"


def _check_required(value: Any) -> str | None:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        return "must be a list of strings"
    return next(filter(None, map(check_name, value)), None)


def _check_text(value: Any) -> str | None:
    return None if isinstance(value, str) else "must be a string"


def _check_pattern(value: Any) -> str | None:
    return _check_text(value) or check_pattern(value)


VALUES: dict[str, Check] = {
    "type": _check_type,
    "enum": _check_enum,
    "const": check_constant,
    "minimum": check_number,
    "maximum": check_number,
    "exclusiveMinimum": check_number,
    "exclusiveMaximum": check_number,
    "multipleOf": _check_divisor,
    "minLength": _check_count,
    "maxLength": _check_count,
    "pattern": _check_pattern,
    "format": _check_text,
    "minItems": _check_count,
    "maxItems": _check_count,
    "required": _check_required,
    "minProperties": _check_count,
    "maxProperties": _check_count,
}
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
COUNTS = frozenset(keyword for keyword, check in VALUES.items() if check is _check_count)
# Literal values come after what they are cut down by.
LITERALS = ("const", "enum")
