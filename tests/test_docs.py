# SPDX-License-Identifier: Apache-2.0
"""What the pages say of fields, series and files is so."""

from __future__ import annotations

import re

import grpc
from google.protobuf.descriptor import Descriptor

from executor_service.grammar import json_schema_keywords as keywords
from executor_service.grammar.json_formats import FORMATS
from executor_service.wire import admission as executor_admission
from protos import sampling
from protos.packserve.v1 import tokenizer_pb2
from tests.fixtures.repository import ROOT
from tests.fixtures.series import exported_series
from tokenizer_service import admission, stops

API = (ROOT / "docs" / "api.md").read_text()
# Field: meaning, range, default, error.
FIELDS = {
    name: [cell.strip() for cell in cells.split("|")]
    for name, cells in re.findall(
        r"^\| `([\w.]+)` \|(.*)\|$", API.split("## Fields")[1].split("\n## ")[0], re.MULTILINE
    )
}
REFUSED = {name for name, (meaning, *_) in FIELDS.items() if meaning == "refused"}
ENTRIES = sampling.MAX_ENTRIES
NUMBERS = {
    "prompts": [1, admission.MAX_ROWS],
    "sampling": [admission.MAX_CALL_BYTES],
    "sampling.logit_bias": [ENTRIES["logit_bias"], sampling.BIAS.low, sampling.BIAS.high],
    "sampling.bad_token_ids": [ENTRIES["bad_token_ids"], 1, sampling.MAX_BAD_TOKENS],
    "sampling.bad_bytes": [ENTRIES["bad_bytes"], 1, sampling.MAX_BAD_BYTES],
    "sampling.allowed_token_ids": [ENTRIES["allowed_token_ids"]],
    "sampling.stop_token_ids": [ENTRIES["stop_token_ids"]],
    "sampling.constraint.choices.choices": [1, sampling.MAX_CHOICES, sampling.MAX_CONSTRAINT_BYTES],
    "stop": [stops.MAX_STOPS, 1, stops.MAX_STOP_CHARS],
    "n": [1, admission.MAX_CHOICES],
    "cache_salt": [admission.MAX_LABEL_LENGTH],
    "request_id": [admission.MAX_LABEL_LENGTH],
    "bad_words": [ENTRIES["bad_bytes"], 1, sampling.MAX_BAD_BYTES],
    **{
        f"sampling.constraint.{kind}": [1, sampling.MAX_CONSTRAINT_BYTES]
        for kind in ("json_schema", "regex", "grammar")
    },
}


def field_names(descriptor: Descriptor, path: str = "") -> list[str]:
    """With the path from a request, into all that `sampling` holds beside sequences of ids."""
    names = []
    for field in descriptor.fields:
        names.append(path + field.name)
        inner = field.message_type
        if inner and inner.name in ("SamplingParameters", "Constraint", "Choices"):
            names += field_names(inner, f"{path}{field.name}.")
    return names


def test_every_field_of_a_request_is_in_the_table_once() -> None:
    rows = re.findall(r"^\| `([\w.]+)` \|", API, re.MULTILINE)
    assert sorted(rows) == sorted(field_names(tokenizer_pb2.GenerateRequest.DESCRIPTOR))
    assert all(len(cells) == 4 for cells in FIELDS.values())


def test_refused_fields_are_those_that_are_refused() -> None:
    assert {f"packserve.v1.GenerateRequest.{name}" for name in REFUSED} == admission.UNSUPPORTED
    assert {name for name, cells in FIELDS.items() if cells[3] == "UNIMPLEMENTED"} == REFUSED | {"output_kind"}
    of_rows = re.search(r"Of `Row`, (.*) are refused", API)
    assert of_rows
    named = {f"packserve.v1.Row.{name}" for name in re.findall(r"`(\w+)`", of_rows[1])}
    assert named == executor_admission.UNSUPPORTED


def test_every_error_of_a_field_is_a_status() -> None:
    statuses = {code.name for code in grpc.StatusCode}
    assert {cells[3] for cells in FIELDS.values()} <= statuses | {"none"}


def test_ranges_are_those_that_are_checked() -> None:
    ranges = {name: cells[1] for name, cells in FIELDS.items()}
    assert {name: ranges[f"sampling.{name}"] for name in sampling.RANGES} == {
        name: str(bounds) for name, bounds in sampling.RANGES.items()
    }
    numbers = {
        name: [int(n.replace(",", "")) for n in re.findall(r"-?\d[\d,]*", text)] for name, text in ranges.items()
    }
    others = numbers.keys() - {f"sampling.{name}" for name in sampling.RANGES}
    assert {name: numbers[name] for name in others if numbers[name]} == NUMBERS


def test_every_series_named_is_exported() -> None:
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    named = {name for page in pages for name in re.findall(r"packserve_\w+", page.read_text())}
    exported = exported_series()
    bases = {re.sub("_(bucket|count|sum|created)$", "", name) for name in exported}
    assert named <= bases | exported


def test_every_file_of_the_architecture_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    paths = re.findall(r"`((?:protos|tokenizer_service|executor_service|kernels)/[\w/.]*)`", text)
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_schema_keywords_are_those_that_the_code_takes() -> None:
    section = API.split("**`json_schema`**")[1].split("**`regex`**")[0]
    table, after = section.split("\n\n`title`")
    enforced = {word for row in table.splitlines() if row.startswith("| ") for word in re.findall(r"`([^`]+)`", row)}
    formats = set(FORMATS)
    taken = {*keywords.VALUES, *keywords.SCHEMA, *keywords.SCHEMA_LISTS, *keywords.SCHEMA_MAPS, *keywords.APPLICATORS}
    assert enforced - formats == taken | keywords.DEFINITIONS | {"$ref"}
    assert formats <= enforced
    said = {"title", *re.findall(r"`([^`]+)`", after.split("say nothing")[0].removeprefix("`"))}
    assert said >= keywords.ANNOTATIONS
