# SPDX-License-Identifier: Apache-2.0
"""What SamplingParameters may hold: ranges and sizes, and, once a model is known, ids. Both services check them.

Does not know what a field does to a row, nor whether a constraint's text has a meaning.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from protos.batch import check_token_range
from protos.errors import InvalidRequest
from protos.packserve.v1 import sampling_pb2


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, both included unless is_open: then low is not. high is None where whole numbers have no
    bound. nan and inf are in none.
    """

    low: float
    high: float | None = None
    is_open: bool = False

    def __contains__(self, value: float) -> bool:
        is_above = self.low < value if self.is_open else self.low <= value
        return math.isfinite(value) and is_above and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        if self.high is None:
            return f">= {self.low:g}"
        return f"in {'(' if self.is_open else '['}{self.low:g}, {self.high:g}{')' if self.high == math.inf else ']'}"


RANGES = {
    "temperature": Range(0, math.inf),
    "top_k": Range(-1),
    "top_p": Range(0, 1),
    "min_p": Range(0, 1),
    "repetition_penalty": Range(0, 10, is_open=True),
    "presence_penalty": Range(-2, 2),
    "frequency_penalty": Range(-2, 2),
    "max_tokens": Range(1),
    "min_tokens": Range(0),
    "logprobs": Range(0, 20),
    "prompt_logprobs": Range(0, 20),
}
BIAS = Range(-100, 100)
MAX_ENTRIES = {
    "logit_bias": 1024,
    "allowed_token_ids": 65536,
    "stop_token_ids": 256,
    "bad_token_ids": 256,
    "bad_bytes": 256,
}
# Ids of one of bad_token_ids, bytes of one of bad_bytes.
MAX_BAD_TOKENS = 64
MAX_BAD_BYTES = 256
# Of a schema, an expression or a grammar, and of all choices together.
MAX_CONSTRAINT_BYTES = 2**17
MAX_CHOICES = 1024


def check_sampling(parameters: sampling_pb2.SamplingParameters) -> None:
    """Raises InvalidRequest naming the field, its value and the bound. Unset fields pass."""
    for name, bounds in RANGES.items():
        if parameters.HasField(name):
            _check_number(name, getattr(parameters, name), bounds)
    for name, most in MAX_ENTRIES.items():
        _check_size(name, "entries", len(getattr(parameters, name)), most)
    if parameters.HasField("max_tokens") and parameters.min_tokens > parameters.max_tokens:
        raise InvalidRequest(
            f"sampling.min_tokens is {parameters.min_tokens}, above sampling.max_tokens = {parameters.max_tokens}"
        )
    for token_id, bias in parameters.logit_bias.items():
        _check_number(f"logit_bias[{token_id}]", bias, BIAS)
    for i, bad in enumerate(parameters.bad_token_ids):
        _check_size(f"bad_token_ids[{i}]", "ids", len(bad.token_ids), MAX_BAD_TOKENS, least=1)
    for i, word in enumerate(parameters.bad_bytes):
        _check_size(f"bad_bytes[{i}]", "bytes", len(word), MAX_BAD_BYTES, least=1)
    if parameters.HasField("constraint"):
        _check_constraint(parameters.constraint)


def check_token_ids(parameters: sampling_pb2.SamplingParameters, vocabulary_size: int) -> None:
    """Raises InvalidRequest for an id outside [0, vocabulary_size): rows of the model's table, with text or not."""
    for name in ("stop_token_ids", "allowed_token_ids"):
        _check_ids(f"sampling.{name}", getattr(parameters, name), vocabulary_size)
    for i, bad in enumerate(parameters.bad_token_ids):
        _check_ids(f"sampling.bad_token_ids[{i}].token_ids", bad.token_ids, vocabulary_size)
    for token_id in parameters.logit_bias:
        if not 0 <= token_id < vocabulary_size:
            raise InvalidRequest(f"sampling.logit_bias[{token_id}]: the model's vocabulary is [0, {vocabulary_size})")


def _check_constraint(constraint: sampling_pb2.Constraint) -> None:
    kind = constraint.WhichOneof("kind")
    if kind is None:
        names = ", ".join(field.name for field in constraint.DESCRIPTOR.fields)
        raise InvalidRequest(f"sampling.constraint is empty, must have one of {names}")
    if kind == "json_object":
        if not constraint.json_object:
            raise InvalidRequest("sampling.constraint.json_object is false, must be true where it is set")
        return
    if kind == "choices":
        _check_choices(constraint.choices.choices)
        return
    _check_size(f"constraint.{kind}", "bytes", len(getattr(constraint, kind).encode()), MAX_CONSTRAINT_BYTES, least=1)


def _check_choices(choices: Sequence[str]) -> None:
    _check_size("constraint.choices", "choices", len(choices), MAX_CHOICES, least=1)
    num_bytes = [len(choice.encode()) for choice in choices]
    for i, number in enumerate(num_bytes):
        _check_size(f"constraint.choices[{i}]", "bytes", number, MAX_CONSTRAINT_BYTES, least=1)
    _check_size("constraint.choices", "bytes", sum(num_bytes), MAX_CONSTRAINT_BYTES)


def _check_number(name: str, value: float, bounds: Range) -> None:
    if value not in bounds:
        raise InvalidRequest(f"sampling.{name} is {value:g}, must be {bounds}")


def _check_size(name: str, unit: str, number: int, most: int, least: int = 0) -> None:
    if not least <= number <= most:
        raise InvalidRequest(f"sampling.{name} has {number} {unit}, must have {least} to {most}")


def _check_ids(what: str, token_ids: Sequence[int], vocabulary_size: int) -> None:
    check_token_range(np.array(token_ids, np.int32), vocabulary_size, what)
