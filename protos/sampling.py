# SPDX-License-Identifier: Apache-2.0
"""What SamplingParameters may hold: the ranges that both services check, and the fields not honoured yet.

Does not know a model: what depends on its vocabulary is checked by the executor.
"""

from __future__ import annotations

import math

from protos.errors import InvalidRequest, NotSupported
from protos.packserve.v1 import sampling_pb2

MAX_STOP_TOKEN_IDS = 256

UNSUPPORTED = frozenset(
    f"packserve.v1.SamplingParameters.{name}"
    for name in (
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "logit_bias",
        "bad_token_ids",
        "allowed_token_ids",
        "min_tokens",
        "prompt_logprobs",
        "constraint",
    )
)


def check_sampling(parameters: sampling_pb2.SamplingParameters) -> None:
    """Raises InvalidRequest naming the field, its value and the bound, or NotSupported. Unset fields pass."""
    if parameters.HasField("temperature"):
        temperature = parameters.temperature
        _check(math.isfinite(temperature) and temperature >= 0, "temperature", temperature, "a finite number >= 0")
    if parameters.HasField("top_p"):
        _check(0 <= parameters.top_p <= 1, "top_p", parameters.top_p, "in [0, 1]")
    if parameters.HasField("top_k"):
        _check(parameters.top_k >= -1, "top_k", parameters.top_k, ">= -1")
    if parameters.HasField("max_tokens"):
        _check(parameters.max_tokens >= 1, "max_tokens", parameters.max_tokens, ">= 1")
    if parameters.HasField("logprobs"):
        _check(parameters.logprobs >= 0, "logprobs", parameters.logprobs, ">= 0")
        if parameters.logprobs > 0:
            raise NotSupported("sampling.logprobs above 0 is not supported")
    num_stops = len(parameters.stop_token_ids)
    _check(num_stops <= MAX_STOP_TOKEN_IDS, "stop_token_ids", num_stops, f"at most {MAX_STOP_TOKEN_IDS} ids")


def _check(is_valid: bool, field: str, value: float, bound: str) -> None:
    if not is_valid:
        raise InvalidRequest(f"sampling.{field} is {value:g}, must be {bound}")
