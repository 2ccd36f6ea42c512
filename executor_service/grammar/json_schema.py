# SPDX-License-Identifier: Apache-2.0
"""A caller's JSON Schema as the plain one that the grammar library gets: nothing in it goes unenforced.

Annotations are gone, references lead to #/$defs, formats are patterns, keywords stand in one order. What can't be
enforced raises InvalidRequest with the keyword and its place. Does not know the library.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from executor_service.grammar.json_formats import FORMATS
from executor_service.grammar.json_schema_keywords import (
    ANNOTATIONS,
    APPLICATORS,
    BOUNDS,
    COUNTS,
    DEFINITIONS,
    LITERALS,
    SCHEMA,
    SCHEMA_LISTS,
    SCHEMA_MAPS,
    VALUES,
    check_name,
)
from executor_service.grammar.json_schema_recursion import refuse_endless
from executor_service.grammar.patterns import check_pattern
from protos.errors import InvalidRequest

Json = dict[str, Any]
Schema = Json | bool

MAX_SCHEMAS = 10_000
MAX_DEPTH = 64
# Of the document's objects and lists: the library reads 127, and $defs may be added.
MAX_JSON_DEPTH = 120

_SCHEMA_KEYWORDS = frozenset(SCHEMA + SCHEMA_LISTS + SCHEMA_MAPS + APPLICATORS + ("$ref",)) | DEFINITIONS


def parse(text: str) -> Schema:
    """Of a caller's text. Raises InvalidRequest where it is no JSON that a schema can be."""
    try:
        document = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except RecursionError as error:
        raise _too_deep() from error
    except ValueError as error:
        raise InvalidRequest(f"constraint.json_schema: not JSON: {error}") from error
    _check_depth(document)
    return plain_schema(document)


def _too_deep() -> InvalidRequest:
    return InvalidRequest(f"constraint.json_schema: objects and lists nest deeper than {MAX_JSON_DEPTH}")


def _check_depth(document: Any) -> None:
    level, depth = [document], 0
    while level := [value for value in level if isinstance(value, dict | list)]:
        depth += 1
        if depth > MAX_JSON_DEPTH:
            raise _too_deep()
        level = [inner for value in level for inner in (value.values() if isinstance(value, dict) else value)]


def _object(pairs: list[tuple[str, Any]]) -> Json:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise InvalidRequest("constraint.json_schema: an object names a member twice")
    return members


def _refuse_constant(name: str) -> None:
    raise InvalidRequest(f"constraint.json_schema: {name} is not JSON")


def plain_schema(document: Any) -> Schema:
    """The schema, with a $defs of all that it refers to."""
    translation = _Translation(document)
    schema = translation.schema(document, "#", 0)
    definitions = translation.definitions()
    _refuse_narrow_ranges(translation.bounds)
    if not definitions or isinstance(schema, bool):
        return schema
    return {**schema, "$defs": definitions}


@dataclass
class _Translation:
    """names: of each reference that was met, in that order. bounds: keyword, value and place of each on a number."""

    document: Any
    names: dict[str, str] = field(default_factory=dict)
    bounds: list[tuple[str, float, str]] = field(default_factory=list)
    num_schemas: int = 0

    def definitions(self) -> dict[str, Schema]:
        """Translating one may meet more."""
        found: dict[str, Schema] = {}
        while len(found) < len(self.names):
            reference, name = list(self.names.items())[len(found)]
            found[name] = self.schema(_target(self.document, reference), reference, 0)
        refuse_endless(found)
        return found

    def schema(self, schema: Any, place: str, depth: int) -> Schema:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise InvalidRequest(f"constraint.json_schema: {place} must be an object or a boolean")
        self.num_schemas += 1
        if self.num_schemas > MAX_SCHEMAS:
            raise InvalidRequest(f"constraint.json_schema: has more than {MAX_SCHEMAS} schemas")
        if depth > MAX_DEPTH:
            raise InvalidRequest(f"constraint.json_schema: nested deeper than {MAX_DEPTH} at {place}")
        _check_keywords(schema, place)
        plain = _plain_values(schema, place)
        self.bounds += [(keyword, plain[keyword], place) for keyword in BOUNDS if keyword in plain]
        for keyword in SCHEMA:
            if keyword in schema:
                plain[keyword] = self.schema(schema[keyword], f"{place}/{keyword}", depth + 1)
        for keyword in SCHEMA_MAPS:
            if keyword in schema:
                plain[keyword] = self._map(schema[keyword], f"{place}/{keyword}", depth)
        for keyword in SCHEMA_LISTS + APPLICATORS:
            if keyword in schema:
                plain[keyword] = self._list(schema[keyword], f"{place}/{keyword}", depth)
        if "$ref" in schema:
            plain["$ref"] = self._reference(schema["$ref"], place)
        return {keyword: plain[keyword] for keyword in sorted(plain, key=_order)}

    def _map(self, schemas: Any, place: str, depth: int) -> Json:
        if not isinstance(schemas, dict):
            raise InvalidRequest(f"constraint.json_schema: {place} must be an object")
        check = check_name if place.endswith("/properties") else check_pattern
        if wrong := next(filter(None, map(check, schemas)), None):
            raise InvalidRequest(f"constraint.json_schema: a name in {place} {wrong}")
        return {name: self.schema(value, f"{place}/{_escape(name)}", depth + 1) for name, value in schemas.items()}

    def _list(self, schemas: Any, place: str, depth: int) -> list[Schema]:
        if not isinstance(schemas, list) or not schemas:
            raise InvalidRequest(f"constraint.json_schema: {place} must be a list of at least one schema")
        return [self.schema(value, f"{place}/{i}", depth + 1) for i, value in enumerate(schemas)]

    def _reference(self, reference: Any, place: str) -> str:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            raise InvalidRequest(f"constraint.json_schema: $ref at {place} must begin with #/, others are not followed")
        name = self.names.setdefault(unquote(reference), f"d{len(self.names)}")
        return f"#/$defs/{name}"


def _order(keyword: str) -> int:
    """An object's own keywords together, then literals, then what adds to them: a grammar is built in this order."""
    return (*SCHEMA_MAPS, *SCHEMA_LISTS, *VALUES, *SCHEMA, *LITERALS, "$ref", *APPLICATORS).index(keyword)


def _check_keywords(schema: Json, place: str) -> None:
    for keyword, value in schema.items():
        if keyword == "$id" and place != "#":
            raise InvalidRequest(f"constraint.json_schema: $id at {place}: only the root may have one")
        if keyword in DEFINITIONS and not isinstance(value, dict):
            raise InvalidRequest(f"constraint.json_schema: {keyword} at {place} must be an object")
        if keyword in VALUES:
            if wrong := VALUES[keyword](value):
                raise InvalidRequest(f"constraint.json_schema: {keyword} at {place} {wrong}")
        elif keyword not in ANNOTATIONS and keyword not in _SCHEMA_KEYWORDS:
            raise InvalidRequest(f"constraint.json_schema: keyword {keyword} at {place} is not enforced")


def _plain_values(schema: Json, place: str) -> Json:
    plain = {keyword: value for keyword, value in schema.items() if keyword in VALUES}
    plain |= {keyword: int(plain[keyword]) for keyword in COUNTS & plain.keys()}
    if "format" in plain:
        _add_pattern(plain, plain.pop("format"), place)
    num_required = len({*schema.get("required", ())})
    if plain.get("minProperties", 0) > num_required + 1:
        # Keys that the schema does not name may come twice, and count once.
        raise InvalidRequest(
            f"constraint.json_schema: minProperties at {place} is {plain['minProperties']}, enforced up to"
            f" {num_required + 1}: one more than the names in required"
        )
    return plain


def _add_pattern(plain: Json, name: str, place: str) -> None:
    if name not in FORMATS:
        raise InvalidRequest(
            f"constraint.json_schema: keyword format at {place} is not enforced for {name!r},"
            f" only for {', '.join(sorted(FORMATS))}"
        )
    pattern = f"^(?:{FORMATS[name]})$"
    if "pattern" in plain:
        raise InvalidRequest(f"constraint.json_schema: format and pattern at {place} are not enforced together")
    plain["pattern"] = pattern


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _target(document: Any, reference: str) -> Any:
    """What a JSON pointer leads to."""
    target = document
    for part in reference.split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        try:
            target = target[_index(key)] if isinstance(target, list) else target[key]
        except (LookupError, ValueError, TypeError):
            raise InvalidRequest(f"constraint.json_schema: $ref {reference} leads nowhere") from None
    return target


def _index(key: str) -> int:
    if not re.fullmatch("0|[1-9][0-9]{0,8}", key):
        raise ValueError(key)
    return int(key)


def _refuse_narrow_ranges(bounds: list[tuple[str, float, str]]) -> None:
    """The library takes 1 for above 1 and below 1.5, and so for every whole number. Schemas merge: any two may meet."""
    for keyword, value, place in bounds:
        if not keyword.startswith("exclusive") or value != int(value):
            continue
        direction = 1 if keyword == "exclusiveMinimum" else -1
        for other, limit, _ in bounds:
            if (
                other.lower().endswith("maximum" if direction > 0 else "minimum")
                and 0 < (limit - value) * direction < 1
            ):
                raise InvalidRequest(
                    f"constraint.json_schema: {keyword} {value} at {place} is not enforced beside {other} {limit}"
                )
