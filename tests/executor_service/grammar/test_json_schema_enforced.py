# SPDX-License-Identifier: Apache-2.0
"""Each keyword that is taken is enforced: an instance that breaks it is not accepted, its neighbour is."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from executor_service.grammar.json_schema_keywords import APPLICATORS, SCHEMA, SCHEMA_LISTS, SCHEMA_MAPS, VALUES
from tests.fixtures.grammars import accepts, schema_constraint

OPEN = {"properties": {"a": {"type": "integer"}}, "patternProperties": {"^x": {"type": "null"}}}
# keyword: [schema, an instance that fits, those that do not]
CASES: list[tuple[str, Any, Any, list[Any]]] = [
    ("type", {"type": "integer"}, 3, ["3", 3.5, None, [3]]),
    ("type", {"type": ["null", "string"]}, None, [False, 0, {}]),
    ("enum", {"enum": [1, "a", None, [1, {"b": 2}]]}, [1, {"b": 2}], [2, "b", [1], {"b": 2}]),
    ("const", {"const": {"a": [1.5, True]}}, {"a": [1.5, True]}, [{"a": [1.5]}, {}, {"a": [1, True]}]),
    ("minimum", {"minimum": 2.5}, 2.5, [2.4, -3]),
    ("maximum", {"maximum": -7}, -7, [-6, 0]),
    ("exclusiveMinimum", {"exclusiveMinimum": 2}, 2.1, [2, 1]),
    ("exclusiveMaximum", {"exclusiveMaximum": 0}, -0.5, [0, 1]),
    ("multipleOf", {"multipleOf": 1.5}, 4.5, [1, 4]),
    ("minLength", {"minLength": 2}, "éé", ["é", ""]),
    ("maxLength", {"maxLength": 1}, "é", ["ab"]),
    ("pattern", {"pattern": "b+"}, "abc", ["ac", ""]),
    ("pattern", {"pattern": "^a$|^b"}, "bc", ["ab", "cb"]),
    ("format", {"format": "date"}, "2024-02-29", ["2023-02-29", "today"]),
    ("minItems", {"minItems": 1}, [1], [[]]),
    ("maxItems", {"maxItems": 1}, [1], [[1, 2]]),
    ("items", {"items": {"type": "null"}}, [None, None], [[None, 1]]),
    ("prefixItems", {"prefixItems": [{"type": "null"}], "items": False}, [None], [[1], [None, None]]),
    ("properties", {"properties": {"a": {"type": "integer"}}}, {"a": 1}, [{"a": "1"}]),
    ("properties", {"properties": {"a": False}}, {"b": 1}, [{"a": 1}]),
    ("patternProperties", OPEN, {"a": 1, "x1": None, "y": 3}, [{"x1": 3}]),
    ("additionalProperties", OPEN | {"additionalProperties": False}, {"a": 1, "x": None}, [{"y": 1}]),
    ("additionalProperties", OPEN | {"additionalProperties": {"type": "string"}}, {"y": "1"}, [{"y": 1}, {"x": "1"}]),
    ("required", {"required": ["b", "a"]}, {"b": 1, "a": 2}, [{"a": 1}, {}]),
    ("minProperties", {"minProperties": 1}, {"a": 1}, [{}]),
    ("maxProperties", {"maxProperties": 1}, {"a": 1}, [{"a": 1, "b": 2}]),
    ("anyOf", {"anyOf": [{"type": "null"}, {"minimum": 3, "type": "integer"}]}, 4, [2, "a"]),
    ("allOf", {"allOf": [{"minimum": 1}, {"maximum": 2}], "type": "integer"}, 2, [0, 3]),
    ("allOf", {"allOf": [OPEN, {"required": ["a"]}], "type": "object"}, {"a": 1}, [{}, {"a": None}]),
    ("oneOf", {"oneOf": [{"type": "null"}, {"type": "string"}]}, "a", [1]),
    (
        "oneOf",
        {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": kind}, kind: {"type": "null"}},
                    "required": ["kind"],
                }
                for kind in ("a", "b")
            ]
        },
        {"kind": "b", "b": None},
        [{"kind": "c"}, {"kind": "a", "a": 1}],
    ),
    (
        "$ref",
        {
            "$ref": "#/$defs/tree",
            "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}},
        },
        [[], [[]]],
        [[[], [], []], [1]],
    ),
    ("$ref", {"items": {"$ref": "#/$defs/a", "maximum": 3}, "$defs": {"a": {"type": "integer"}}}, [3], [[4], ["3"]]),
]


@pytest.mark.parametrize(("keyword", "schema", "good", "bad"), CASES)
def test_keyword_is_enforced(keyword: str, schema: Any, good: Any, bad: list[Any]) -> None:
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    validator = jsonschema.Draft202012Validator(schema, format_checker=checker)
    assert validator.is_valid(good)
    assert accepts(schema_constraint(schema), json.dumps(good, ensure_ascii=False))
    for instance in bad:
        assert not validator.is_valid(instance)
        assert not accepts(schema_constraint(schema), json.dumps(instance, ensure_ascii=False)), instance


def test_every_keyword_has_a_case() -> None:
    keywords = {*VALUES, *SCHEMA, *SCHEMA_LISTS, *SCHEMA_MAPS, *APPLICATORS, "$ref"}
    assert {keyword for keyword, *_ in CASES} == keywords


def test_properties_come_in_their_schemas_order_and_others_after_them() -> None:
    constraint = schema_constraint({"properties": {"b": {}, "a": {}}, "required": ["c", "a"]})
    assert accepts(constraint, '{"b": 1, "a": 2, "c": 3, "d": 4}')
    assert accepts(constraint, '{"a": 2, "c": 3}')
    assert not accepts(constraint, '{"a": 2, "b": 1, "c": 3}')
    assert not accepts(constraint, '{"d": 4, "a": 2, "c": 3}')
