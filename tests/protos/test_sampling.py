# SPDX-License-Identifier: Apache-2.0
"""Ranges that both services check, and what is not offered yet."""

from __future__ import annotations

import math
from typing import Any

import pytest

from protos.errors import InvalidRequest, NotSupported
from protos.packserve.v1.sampling_pb2 import SamplingParameters
from protos.sampling import check_sampling


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"temperature": math.nan}, "sampling.temperature is nan, must be a finite number >= 0"),
        ({"top_p": 1.5}, "sampling.top_p is 1.5, must be in [0, 1]"),
        ({"top_k": -2}, "sampling.top_k is -2, must be >= -1"),
        ({"max_tokens": 0}, "sampling.max_tokens is 0, must be >= 1"),
        ({"logprobs": -1}, "sampling.logprobs is -1, must be >= 0"),
        ({"stop_token_ids": [1] * 257}, "sampling.stop_token_ids is 257, must be at most 256 ids"),
    ],
)
def test_value_out_of_range_is_named_with_its_bound(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        check_sampling(SamplingParameters(**fields))
    assert str(error.value) == words


def test_logprobs_of_more_than_the_chosen_id_are_not_offered() -> None:
    check_sampling(SamplingParameters(logprobs=0))
    with pytest.raises(NotSupported, match=r"^sampling\.logprobs above 0 is not supported$"):
        check_sampling(SamplingParameters(logprobs=1))


def test_what_is_not_set_passes() -> None:
    check_sampling(SamplingParameters())
