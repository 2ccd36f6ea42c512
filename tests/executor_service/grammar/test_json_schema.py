# SPDX-License-Identifier: Apache-2.0
"""Which schemas are taken: each keyword is enforced, an annotation, or refused by its name and place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from executor_service.grammar.json_schema import parse, plain_schema
from executor_service.grammar.json_schema_keywords import ANNOTATIONS
from protos.errors import InvalidRequest

REFUSED = {
    "not": {"type": "string"},
    "if": {"type": "string"},
    "then": {},
    "else": {},
    "dependentRequired": {"a": ["b"]},
    "dependentSchemas": {"a": {}},
    "dependencies": {},
    "contains": {"type": "string"},
    "minContains": 1,
    "maxContains": 2,
    "uniqueItems": True,
    "propertyNames": {"pattern": "^a"},
    "unevaluatedItems": False,
    "unevaluatedProperties": False,
    "additionalItems": False,
    "contentEncoding": "base64",
    "contentMediaType": "image/png",
    "contentSchema": {},
    "$anchor": "a",
    "$dynamicRef": "#a",
    "$dynamicAnchor": "a",
    "$recursiveRef": "#",
    "$vocabulary": {},
    "x-guidance": {"lenient": True},
    "nullable": True,
}
# An object that needs another one like it, in an optional place.
ENDLESS = {
    "properties": {"a": {"$ref": "#/$defs/a"}},
    "$defs": {"a": {"type": "object", "required": ["b"], "properties": {"b": {"items": True, "$ref": "#/$defs/a"}}}},
}


@pytest.mark.parametrize("keyword", REFUSED)
def test_keyword_that_is_not_enforced_is_refused_by_name_and_place(keyword: str) -> None:
    message = rf"^constraint.json_schema: keyword \{keyword} at #/properties/a is not enforced$"
    message = message.replace("\\", "\\" if keyword.startswith("$") else "")
    with pytest.raises(InvalidRequest, match=message):
        plain_schema({"properties": {"a": {keyword: REFUSED[keyword]}}})


@pytest.mark.parametrize("place", ["items", "additionalProperties"])
def test_keyword_is_found_wherever_a_schema_is(place: str) -> None:
    with pytest.raises(InvalidRequest, match=f"keyword not at #/{place}/anyOf/1/prefixItems/0 is"):
        plain_schema({place: {"anyOf": [True, {"prefixItems": [{"not": {}}]}]}})


def test_annotations_have_no_effect() -> None:
    assert plain_schema({"type": "string"} | dict.fromkeys(ANNOTATIONS, "x")) == {"type": "string"}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "date"}, "type at # must be one or more of null, "),
        ({"type": []}, "type at # must be"),
        ({"enum": []}, "enum at # must be a list of at least one value"),
        ({"enum": ["a\x00"]}, r"enum at # holds the control character '\\x00'"),
        ({"const": 2**53 + 1}, "const at # must be within 9007199254740992 of 0"),
        ({"maximum": "3"}, "maximum at # must be a number"),
        ({"minimum": 1.2345678901234567}, "minimum at # must have at most 15 digits"),
        ({"multipleOf": 0}, "multipleOf at # must be above 0"),
        ({"maxItems": -1}, "maxItems at # must be a whole number from 0 to 100000"),
        ({"required": "a"}, "required at # must be a list of strings"),
        ({"properties": []}, "#/properties must be an object"),
        ({"properties": {"a\x7f": {}}}, "a name in #/properties holds the control character"),
        ({"items": [{}]}, "#/items must be an object or a boolean"),
        ({"anyOf": []}, "#/anyOf must be a list of at least one schema"),
        ({"pattern": "[a&&b]"}, "pattern at # has the class"),
        ({"patternProperties": {"a++": {}}}, r"a name in #/patternProperties has '\+\+'"),
        ({"format": "regex"}, "keyword format at # is not enforced for 'regex', only for date, "),
        ({"format": "date", "pattern": "1"}, "format and pattern at # are not enforced together"),
        ({"minProperties": 2}, "minProperties at # is 2, enforced up to 1"),
        ({"exclusiveMinimum": 1, "maximum": 1.5}, "exclusiveMinimum 1 at # is not enforced beside maximum 1.5"),
        ({"allOf": [{"minimum": -0.5}, {"exclusiveMaximum": 0}]}, "exclusiveMaximum 0 at #/allOf/1 is not enforced"),
        ({"properties": {"a": {"$id": "x"}}}, r"\$id at #/properties/a: only the root may have one"),
        ({"$ref": "other.json#/a"}, r"\$ref at # must begin with #/"),
        ({"$ref": "#/$defs/a"}, r"\$ref #/\$defs/a leads nowhere"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"not": {}}}}, r"keyword not at #/\$defs/a is not enforced"),
        (
            {"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {}]}}},
            r"a \$ref leads back to itself",
        ),
        ({"$ref": "#"}, r"a \$ref leads back to itself"),
        (ENDLESS, r"a \$ref leads to a schema whose instances never end"),
        ({"$ref": "#/anyOf/-1", "anyOf": [{}]}, r"\$ref #/anyOf/-1 leads nowhere"),
        ({"$ref": "#/anyOf/00", "anyOf": [{}]}, r"\$ref #/anyOf/00 leads nowhere"),
        ({"$defs": 5}, r"\$defs at # must be an object"),
        ({"items": {"definitions": []}}, "definitions at #/items must be an object"),
        ([], "# must be an object or a boolean"),
    ],
)
def test_what_can_not_be_enforced_is_refused(schema: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^constraint.json_schema: {message}"):
        plain_schema(schema)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"type": "string", "type": "number"}', "an object names a member twice"),
        ('{"items":' * 100 + "{}" + "}" * 100, "nested deeper than 64"),
        ("[" * 100_000, "objects and lists nest deeper than 120"),
        ('{"maximum": 1e999}', "maximum at # must be finite"),
    ],
)
def test_text_that_is_no_schema_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^constraint.json_schema: {message}"):
        parse(text)


def test_too_many_schemas_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="has more than 10000 schemas"):
        plain_schema({"anyOf": [{}] * 10_000})


def test_references_lead_to_definitions_of_the_plain_schema() -> None:
    schema = {
        "properties": {"next": {"$ref": "#"}, "b": {"$ref": "#/definitions/a~1b"}, "c": {"$ref": "#/properties/b"}},
        "definitions": {"a/b": {"type": "null"}, "unused": {"not": {}}},
    }
    plain = plain_schema(schema)
    assert isinstance(plain, dict)
    assert [*plain["$defs"]] == ["d0", "d1", "d2"]
    assert plain["$defs"]["d0"] == {"properties": plain["properties"]}
    assert plain["$defs"]["d1"] == {"type": "null"}
    assert plain["$defs"]["d2"] == {"$ref": "#/$defs/d1"}


def test_properties_keep_their_order_and_come_before_those_of_applicators() -> None:
    plain = parse('{"allOf": [{"properties": {"z": true}}], "properties": {"b": true, "a": true}}')
    assert json.dumps(plain) == '{"properties": {"b": true, "a": true}, "allOf": [{"properties": {"z": true}}]}'


def test_recursion_that_can_end_is_taken() -> None:
    tree = {
        "type": "object",
        "required": ["left"],
        "properties": {"left": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    }
    assert isinstance(plain_schema(tree), dict)
    assert isinstance(plain_schema({"type": "array", "items": {"$ref": "#"}}), dict)
