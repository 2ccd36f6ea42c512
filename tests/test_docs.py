# SPDX-License-Identifier: Apache-2.0
"""What the pages say of fields, series and files is so."""

from __future__ import annotations

import re

from google.protobuf.descriptor import Descriptor

from protos.packserve.v1 import sampling_pb2, tokenizer_pb2
from tests.fixtures.repository import ROOT
from tests.fixtures.series import exported_series
from tokenizer_service.admission import UNSUPPORTED

API = (ROOT / "docs" / "api.md").read_text()
TABLE, REFUSED = API.split("## Honoured and refused")[1].split("Refused by name until")
REFUSED = REFUSED.split("##")[0]


def field_names(descriptor: Descriptor) -> set[str]:
    return {field.name for field in descriptor.fields}


def test_every_field_is_in_the_table_or_refused() -> None:
    documented = set(re.findall(r"^\| `(?:sampling\.)?(\w+)`", TABLE, re.MULTILINE))
    refused = {name.rsplit(".", 1)[1] for name in UNSUPPORTED} | {"output_kind"}
    requests = field_names(tokenizer_pb2.GenerateRequest.DESCRIPTOR) - {"prompts", "sampling"}
    every = requests | field_names(sampling_pb2.SamplingParameters.DESCRIPTOR)
    assert documented | refused == every
    assert not documented & refused
    named = set(re.findall(r"`(\w+)`", REFUSED)) | {
        f"{kind}_penalty" for kind in ("repetition", "presence", "frequency")
    }
    assert refused <= named


def test_every_series_named_is_exported() -> None:
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    named = {name for page in pages for name in re.findall(r"packserve_\w+", page.read_text())}
    bases = {re.sub("_(bucket|count|sum|created)$", "", name) for name in exported_series()}
    assert named <= bases


def test_every_file_of_the_architecture_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    paths = re.findall(r"`((?:protos|tokenizer_service|executor_service|kernels)/[\w/.]*)`", text)
    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []
