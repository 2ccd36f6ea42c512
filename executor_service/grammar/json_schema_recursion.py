# SPDX-License-Identifier: Apache-2.0
"""Definitions that refer to themselves: right where an instance can end, refused where none can.

Reads plain schemas: every $ref is #/$defs/NAME. Does not know what else a keyword means.
"""

from __future__ import annotations

from typing import Any

from executor_service.grammar.json_schema_keywords import APPLICATORS, LITERALS, TYPES
from protos.errors import InvalidRequest

Schema = dict[str, Any] | bool


def refuse_endless(definitions: dict[str, Schema]) -> None:
    _refuse_loops(definitions)
    ending: set[str] = set()
    while more := {name for name in definitions.keys() - ending if _ends(definitions[name], ending)}:
        ending |= more
    if ending != definitions.keys():
        raise InvalidRequest("constraint.json_schema: a $ref leads to a schema whose instances never end")


def _ends(schema: Schema, ending: set[str]) -> bool:
    """Whether it has an instance in which every reference leads to one of `ending`."""
    if isinstance(schema, bool):
        return True
    if "$ref" in schema and _name(schema) not in ending:
        return False
    if not all(_ends(part, ending) for part in schema.get("allOf", ())):
        return False
    alternatives = [schema[keyword] for keyword in ("anyOf", "oneOf") if keyword in schema]
    if not all(any(_ends(one, ending) for one in several) for several in alternatives):
        return False
    types = schema.get("type", TYPES)
    types = {types} if isinstance(types, str) else {*types}
    if types - {"object", "array"} or not schema.keys().isdisjoint(LITERALS):
        return True
    return any(all(_ends(part, ending) for part in parts) for parts in _parts(schema, types))


def _parts(schema: dict[str, Any], types: set[str]) -> list[list[Schema]]:
    """For each type, the schemas of what an instance can't do without."""
    parts = []
    if "object" in types:
        others = schema.get("additionalProperties", True)
        properties = schema.get("properties", {})
        parts.append([properties.get(name, others) for name in schema.get("required", ())])
    if "array" in types:
        first, num_items = schema.get("prefixItems", []), schema.get("minItems", 0)
        parts.append(first[:num_items] + [schema.get("items", True)] * (num_items > len(first)))
    return parts


def _refuse_loops(definitions: dict[str, Schema]) -> None:
    """A definition that is itself before any member or item of it has no meaning."""
    for name in definitions:
        todo, seen = [*_same_instance(definitions[name])], set[str]()
        while todo:
            reference = todo.pop()
            if reference == name:
                raise InvalidRequest("constraint.json_schema: a $ref leads back to itself")
            if reference not in seen:
                seen.add(reference)
                todo += _same_instance(definitions[reference])


def _same_instance(schema: Schema) -> list[str]:
    """Names of the definitions that an instance of this schema has to satisfy itself."""
    if isinstance(schema, bool):
        return []
    names = [_name(schema)] if "$ref" in schema else []
    for keyword in APPLICATORS:
        for alternative in schema.get(keyword, ()):
            names += _same_instance(alternative)
    return names


def _name(schema: dict[str, Any]) -> str:
    """Of the definition that it refers to."""
    return str(schema["$ref"]).removeprefix("#/$defs/")
