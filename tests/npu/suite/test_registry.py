# SPDX-License-Identifier: Apache-2.0
"""The schemas that the quick tests bind our calls to are those of the wheel."""

from __future__ import annotations

import pytest
import torch

from tests.fixtures.npu_ops import REFERENCES, SCHEMAS


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema_is_the_live_one(name: str) -> None:
    operation, _, overload = name.partition(".")
    live = torch._C._get_schema(operation, overload)
    assert str(live) == SCHEMAS[name]


@pytest.mark.parametrize("name", REFERENCES)
def test_each_reference_is_of_an_operation_for_the_device(name: str) -> None:
    assert torch._C._dispatch_has_kernel_for_dispatch_key(name, "PrivateUse1")
