# SPDX-License-Identifier: Apache-2.0
"""What of a Welcome must match, and what a refusal names."""

from __future__ import annotations

import re
from typing import Any

import pytest

from protos.errors import NotReady
from protos.packserve.v1.executor_pb2 import Hello, ModelFingerprint, Welcome
from protos.server import PROTOCOL_VERSION
from tokenizer_service.handshake import OtherModel, check_same_model, check_welcome

OURS = {"config_sha256": "c" * 64, "weights_sha256": "w" * 64, "dtype": "float32", "quantization": "none"}


@pytest.mark.parametrize(
    ("welcome", "words"),
    [
        ({"protocol_version": 99}, f"executor's protocol version is 99, ours is {PROTOCOL_VERSION}"),
        (
            {"fingerprint": ModelFingerprint(vocabulary_sha256="b" * 64)},
            "executor's vocabulary is bbbbbbbbbbbb, this tokenizer's aaaaaaaaaaaa",
        ),
    ],
)
def test_executor_that_cannot_serve_us_is_refused(welcome: dict[str, Any], words: str) -> None:
    fingerprint = ModelFingerprint(vocabulary_sha256="a" * 64)
    good: dict[str, Any] = {"protocol_version": PROTOCOL_VERSION, "fingerprint": fingerprint}
    hello = Hello(vocabulary_sha256="a" * 64)
    check_welcome(Welcome(**good), hello)
    with pytest.raises(NotReady, match=f"^{re.escape(words)}$"):
        check_welcome(Welcome(**(good | welcome)), hello)


@pytest.mark.parametrize("field", OURS)
def test_each_part_of_a_model_counts(field: str) -> None:
    check_same_model(ModelFingerprint(**OURS), ModelFingerprint(**OURS))
    with pytest.raises(OtherModel, match=f"^executor's {field} is 'other', that of those connected '"):
        check_same_model(ModelFingerprint(**(OURS | {field: "other"})), ModelFingerprint(**OURS))
