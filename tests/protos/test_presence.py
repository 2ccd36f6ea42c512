# SPDX-License-Identifier: Apache-2.0
"""A bool whose default is true, in its three states."""

from __future__ import annotations

import pytest

from protos.packserve.v1.tokenizer_pb2 import Prompt
from protos.presence import is_true_or_unset


@pytest.mark.parametrize(("value", "expected"), [(None, True), (True, True), (False, False)])
def test_only_false_is_false(value: bool | None, expected: bool) -> None:
    assert is_true_or_unset(Prompt(add_special_tokens=value), "add_special_tokens") is expected
