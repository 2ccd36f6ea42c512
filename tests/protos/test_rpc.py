# SPDX-License-Identifier: Apache-2.0
"""Every error has a status, and comes back from its number as what it was."""

from __future__ import annotations

import grpc
import pytest

from protos import errors
from protos.rpc import CODES, MAX_DETAIL_CHARS, code_number, detail, error_from_code, status_code


@pytest.mark.parametrize("error", CODES)
def test_number_and_back(error: type[errors.PackserveError]) -> None:
    back = error_from_code(code_number(error("why")), "why")
    assert type(back) is error
    assert str(back) == "why"


def test_subclass_takes_its_parents_status() -> None:
    assert status_code(errors.PromptTooLong("")) is grpc.StatusCode.INVALID_ARGUMENT


def test_failure_of_the_model_is_internal() -> None:
    """B57: and none of the caller's."""
    assert status_code(errors.ModelFailure("")) is grpc.StatusCode.INTERNAL


def test_unknown_number_is_an_internal_error() -> None:
    assert type(error_from_code(99, "?")) is errors.PackserveError


def test_long_detail_is_cut() -> None:
    """B42: details of 20 KB would not fit the trailer, and the caller would see another code."""
    assert len(detail(errors.InvalidRequest("x" * 20_000))) == MAX_DETAIL_CHARS
