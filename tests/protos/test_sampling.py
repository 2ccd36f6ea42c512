# SPDX-License-Identifier: Apache-2.0
"""What both services check: ranges, sizes, and ids once the model's vocabulary is known."""

from __future__ import annotations

import math
from typing import Any

import pytest

from protos.errors import InvalidRequest
from protos.packserve.v1.batch_pb2 import TokenIds
from protos.packserve.v1.sampling_pb2 import Choices, Constraint, SamplingParameters
from protos.sampling import MAX_CONSTRAINT_BYTES, MAX_ENTRIES, RANGES, check_sampling, check_token_ids


def refusal(fields: dict[str, Any]) -> str:
    with pytest.raises(InvalidRequest) as error:
        check_sampling(SamplingParameters(**fields))
    return str(error.value)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"temperature": math.nan}, "sampling.temperature is nan, must be in [0, inf)"),
        ({"temperature": -1.0}, "sampling.temperature is -1, must be in [0, inf)"),
        ({"top_p": 1.5}, "sampling.top_p is 1.5, must be in [0, 1]"),
        ({"top_k": -2}, "sampling.top_k is -2, must be >= -1"),
        ({"min_p": -0.5}, "sampling.min_p is -0.5, must be in [0, 1]"),
        ({"repetition_penalty": 0.0}, "sampling.repetition_penalty is 0, must be in (0, 10]"),
        ({"presence_penalty": 2.5}, "sampling.presence_penalty is 2.5, must be in [-2, 2]"),
        ({"frequency_penalty": -2.5}, "sampling.frequency_penalty is -2.5, must be in [-2, 2]"),
        ({"max_tokens": 0}, "sampling.max_tokens is 0, must be >= 1"),
        ({"min_tokens": -1}, "sampling.min_tokens is -1, must be >= 0"),
        ({"min_tokens": 5, "max_tokens": 4}, "sampling.min_tokens is 5, above sampling.max_tokens = 4"),
        ({"logprobs": -1}, "sampling.logprobs is -1, must be in [0, 20]"),
        ({"prompt_logprobs": 21}, "sampling.prompt_logprobs is 21, must be in [0, 20]"),
        ({"logit_bias": {7: math.nan}}, "sampling.logit_bias[7] is nan, must be in [-100, 100]"),
        ({"logit_bias": {7: 101.0}}, "sampling.logit_bias[7] is 101, must be in [-100, 100]"),
        ({"bad_token_ids": [TokenIds()]}, "sampling.bad_token_ids[0] has 0 ids, must have 1 to 64"),
        ({"bad_token_ids": [TokenIds(token_ids=[1] * 65)]}, "sampling.bad_token_ids[0] has 65 ids, must have 1 to 64"),
        ({"bad_bytes": [b"x", b""]}, "sampling.bad_bytes[1] has 0 bytes, must have 1 to 256"),
        ({"bad_bytes": [b"x" * 257]}, "sampling.bad_bytes[0] has 257 bytes, must have 1 to 256"),
    ],
)
def test_value_out_of_range_is_named_with_its_bound(fields: dict[str, Any], words: str) -> None:
    assert refusal(fields) == words


FLOATS = [name for name in RANGES if SamplingParameters.DESCRIPTOR.fields_by_name[name].cpp_type == 6]


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_finite_number_is_refused(name: str, value: float) -> None:
    """B24: protobuf carries them."""
    assert refusal({name: value}).startswith(f"sampling.{name} is {value:g}, must be ")


@pytest.mark.parametrize(
    "fields",
    [
        *({"temperature": value} for value in (0, 1e-6, 1e-5, 1e-3, 1e30)),
        *({"top_k": value} for value in (0, -1, 1, 320, 321, 2**31 - 1)),
        *({"top_p": value} for value in (0, 1e-9, 1)),
        *({"min_p": value} for value in (0, 1)),
        {"repetition_penalty": 1e-6},
        {"repetition_penalty": 10},
        {"min_tokens": 4, "max_tokens": 4},
        {"min_tokens": 4},
        {"logprobs": 20, "prompt_logprobs": 0},
        {"logit_bias": {0: -100, 1: 100}},
        {"bad_token_ids": [TokenIds(token_ids=[1] * 64)] * 256, "bad_bytes": [b"x" * 256] * 256},
        {"seed": 2**64 - 1, "ignore_eos": True},
        {},
    ],
)
def test_value_with_a_meaning_passes(fields: dict[str, Any]) -> None:
    """B24, B27."""
    check_sampling(SamplingParameters(**fields))


@pytest.mark.parametrize("name", MAX_ENTRIES)
def test_number_of_entries_is_bounded(name: str) -> None:
    most = MAX_ENTRIES[name]
    entries: dict[str, Any] = {
        "logit_bias": dict.fromkeys(range(most + 1), 0.0),
        "bad_token_ids": [TokenIds(token_ids=[1])] * (most + 1),
        "bad_bytes": [b"x"] * (most + 1),
    }
    words = refusal({name: entries.get(name, [1] * (most + 1))})
    assert words == f"sampling.{name} has {most + 1} entries, must have 0 to {most}"


LONG = "é" * (MAX_CONSTRAINT_BYTES // 2)


@pytest.mark.parametrize(
    ("constraint", "words"),
    [
        (Constraint(), "is empty, must have one of json_schema, json_object, regex, grammar, choices"),
        (Constraint(json_object=False), ".json_object is false, must be true where it is set"),
        (Constraint(json_schema=""), ".json_schema has 0 bytes, must have 1 to 131072"),
        (Constraint(regex=LONG + "x"), ".regex has 131073 bytes, must have 1 to 131072"),
        (Constraint(choices=Choices()), ".choices has 0 choices, must have 1 to 1024"),
        (Constraint(choices=Choices(choices=["x"] * 1025)), ".choices has 1025 choices, must have 1 to 1024"),
        (Constraint(choices=Choices(choices=["x", ""])), ".choices[1] has 0 bytes, must have 1 to 131072"),
        (Constraint(choices=Choices(choices=[LONG, "x"])), ".choices has 131073 bytes, must have 0 to 131072"),
    ],
)
def test_constraint_without_a_meaning_is_refused(constraint: Constraint, words: str) -> None:
    assert refusal({"constraint": constraint}) == f"sampling.constraint{'' if words[0] == '.' else ' '}{words}"


@pytest.mark.parametrize(
    "constraint",
    [
        Constraint(json_object=True),
        Constraint(json_schema="{}"),
        Constraint(regex=LONG),
        Constraint(grammar="root ::= 'a'"),
        Constraint(choices=Choices(choices=["x"] * 1024)),
    ],
)
def test_constraint_within_bounds_passes(constraint: Constraint) -> None:
    check_sampling(SamplingParameters(constraint=constraint))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"stop_token_ids": [319, 320]}, "sampling.stop_token_ids[1] is 320"),
        ({"stop_token_ids": [-1]}, "sampling.stop_token_ids[0] is -1"),
        ({"allowed_token_ids": [151645]}, "sampling.allowed_token_ids[0] is 151645"),
        (
            {"bad_token_ids": [TokenIds(token_ids=[1]), TokenIds(token_ids=[2, 320])]},
            "sampling.bad_token_ids[1].token_ids[1] is 320",
        ),
        ({"logit_bias": {320: 1.0}}, "sampling.logit_bias[320]"),
        ({"logit_bias": {-1: 1.0}}, "sampling.logit_bias[-1]"),
    ],
)
def test_id_outside_the_models_vocabulary_is_named_with_its_bound(fields: dict[str, Any], words: str) -> None:
    """B28."""
    parameters = SamplingParameters(**fields)
    check_sampling(parameters)
    with pytest.raises(InvalidRequest) as error:
        check_token_ids(parameters, 320)
    assert str(error.value).startswith(words)
    assert str(error.value).endswith("the model's vocabulary is [0, 320)")


def test_ids_without_text_are_ids() -> None:
    """B28, B36: 300 is a padding row of the model's table."""
    ids = [0, 300, 319]
    parameters = SamplingParameters(
        stop_token_ids=ids,
        allowed_token_ids=ids,
        bad_token_ids=[TokenIds(token_ids=ids)],
        logit_bias=dict.fromkeys(ids, 1.0),
    )
    check_token_ids(parameters, 320)
