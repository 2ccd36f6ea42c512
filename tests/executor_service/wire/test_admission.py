# SPDX-License-Identifier: Apache-2.0
"""A row from the wire as a sequence: every field in its place, or a refusal that names it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from executor_service.scheduling.sequence import RowKey, Sampling, Sequence
from executor_service.wire.admission import UNSUPPORTED, Admission
from protos.errors import DeadlineExceeded, InvalidRequest, NotReady, NotSupported
from protos.packserve.v1.batch_pb2 import TokenIds
from protos.packserve.v1.executor_pb2 import Row
from protos.packserve.v1.sampling_pb2 import Constraint, SamplingParameters
from protos.vocabulary import Vocabulary

VOCABULARY = Vocabulary(tuple(bytes([i]) for i in range(256)), frozenset(), strips_leading_space=False)
EOS = frozenset({257})


def admit(
    *token_ids: int,
    defaults: dict[str, Any] | None = None,
    vocabulary: Vocabulary | None = VOCABULARY,
    row: dict[str, Any] | None = None,
    **sampling: Any,
) -> Sequence:
    """A prompt of three ids where none are given; a vocabulary of 320, a context of 64."""
    admission = Admission(320, 64, EOS, SamplingParameters(**(defaults or {})), vocabulary)
    wire = Row(sampling=SamplingParameters(**sampling), **(row or {}))
    return admission.admit(RowKey(1, 1), np.array(token_ids or (1, 2, 3), np.int32), wire)


def test_unset_fields_are_the_written_defaults() -> None:
    sequence = admit(seed=5)
    assert sequence.sampling == Sampling(temperature=1.0, seed=5)
    assert (sequence.min_output_tokens, sequence.max_output_tokens) == (0, 61)
    assert (sequence.banned, sequence.grammar, sequence.stop_token_ids) == ((), None, EOS)
    assert (sequence.priority, sequence.cache_salt, sequence.num_scored) == (0, b"", 1)


def test_every_field_has_its_place() -> None:
    sequence = admit(
        temperature=0.5,
        top_k=7,
        top_p=0.25,
        min_p=0.125,
        repetition_penalty=1.5,
        presence_penalty=-0.5,
        frequency_penalty=2,
        logit_bias={300: 1, 4: -2, 9: 0.5},
        allowed_token_ids=[9, 4, 300, 9],
        min_tokens=2,
        max_tokens=8,
        stop_token_ids=[300],
        seed=6,
        logprobs=3,
        prompt_logprobs=0,
        constraint=Constraint(regex="a"),
        row={"choice_index": 3, "priority": -4, "cache_salt": b"s"},
    )
    assert sequence.sampling == Sampling(
        temperature=0.5,
        top_k=7,
        top_p=0.25,
        min_p=0.125,
        repetition_penalty=1.5,
        presence_penalty=-0.5,
        frequency_penalty=2.0,
        logit_bias=((4, -2.0), (9, 0.5), (300, 1.0)),
        allowed_token_ids=(4, 9, 300),
        seed=6,
        choice_index=3,
        logprobs=3,
        prompt_logprobs=0,
    )
    assert (sequence.min_output_tokens, sequence.max_output_tokens) == (2, 8)
    assert sequence.stop_token_ids == {257, 300}
    assert (sequence.priority, sequence.cache_salt) == (-4, b"s")
    assert sequence.grammar is None  # compiled elsewhere


def test_models_defaults_stand_in_for_unset_fields_only() -> None:
    defaults = {"temperature": 0.5, "min_p": 0.25, "repetition_penalty": 1.25, "top_k": 20}
    sampling = admit(defaults=defaults, temperature=0, top_k=0).sampling
    assert (sampling.temperature, sampling.min_p, sampling.repetition_penalty, sampling.top_k) == (0, 0.25, 1.25, 0)


@pytest.mark.parametrize("top_k", [0, -1, 320, 321, 2**31 - 1])
def test_top_k_of_all_is_no_top_k(top_k: int) -> None:
    """B27."""
    assert admit(top_k=top_k).sampling.top_k == 0


@pytest.mark.parametrize("fields", [{"temperature": 1e-3}, {"temperature": 0}, {"top_k": 1}, {"top_p": 0}])
def test_what_is_greedy_in_effect_is_greedy(fields: dict[str, float]) -> None:
    """B24, B27."""
    assert admit(**fields).sampling.is_greedy


def test_known_output_counts_and_its_prompt_is_not_scored_again() -> None:
    sequence = admit(1, 2, 3, 8, 9, row={"num_output_known": 2}, min_tokens=4, max_tokens=6, prompt_logprobs=5)
    assert (sequence.num_prompt_tokens, sequence.known_output.tolist()) == (3, [8, 9])
    assert (sequence.min_output_tokens, sequence.max_output_tokens) == (4, 6)
    assert sequence.num_scored == sequence.num_prompt_tokens
    with pytest.raises(InvalidRequest, match="num_output_known is 2, the row ends at 2"):
        admit(1, 2, 3, 8, 9, row={"num_output_known": 2}, max_tokens=2)


def test_bad_ids_and_bytes_become_what_the_output_forbids() -> None:
    sequence = admit(
        bad_token_ids=[TokenIds(token_ids=[300]), TokenIds(token_ids=[8, 9])], bad_bytes=[b"a", b"bc"], max_tokens=5
    )
    forbidden = [set(banned.next_token_ids(np.array([8, *b"b"], np.int32))) for banned in sequence.banned]
    assert forbidden == [set(), {ord("c")}]
    assert {300, ord("a")} <= set(sequence.sampling.banned_token_ids)
    assert len(admit(bad_token_ids=[TokenIds(token_ids=[3])]).banned) == 1


def test_bad_bytes_never_forbid_ids_that_the_model_has_not() -> None:
    """A tokenizer may have more pieces than the model's table has rows."""
    pieces = (*(b"x" for _ in range(320)), b"ab", b"x")
    sequence = admit(vocabulary=Vocabulary(pieces, frozenset(), False), bad_bytes=[b"ab", b"xx"])
    assert sequence.sampling.banned_token_ids == ()
    [banned] = sequence.banned
    assert set(banned.next_token_ids(np.array([5], np.int32))) == set(range(320))


def test_bad_bytes_are_refused_where_ids_have_no_bytes() -> None:
    assert admit(vocabulary=None).banned == ()
    with pytest.raises(NotReady, match=r"sampling\.bad_bytes needs the bytes of ids"):
        admit(vocabulary=None, bad_bytes=[b"x"])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"temperature": math.nan}, "sampling.temperature is nan"),
        ({"min_p": 2}, r"sampling.min_p is 2, must be in \[0, 1\]"),
        ({"stop_token_ids": [320]}, r"sampling.stop_token_ids\[0\] is 320, the model's vocabulary is \[0, 320\)"),
        ({"logit_bias": {320: 1}}, r"sampling.logit_bias\[320\]: the model's vocabulary is \[0, 320\)"),
        ({"logprobs": 21}, r"sampling.logprobs is 21, must be in \[0, 20\]"),
        ({"min_tokens": 3, "max_tokens": 2}, "sampling.min_tokens is 3, above sampling.max_tokens = 2"),
    ],
)
def test_bad_parameters_are_refused_with_value_and_bound(fields: dict[str, Any], words: str) -> None:
    """B24, B28, B30."""
    with pytest.raises(InvalidRequest, match=words):
        admit(**fields)


@pytest.mark.parametrize("name", sorted(name.rpartition(".")[2] for name in UNSUPPORTED))
def test_field_not_honoured_is_refused_by_name(name: str) -> None:
    with pytest.raises(NotSupported, match=f"^{name} is not supported$"):
        admit(row={name: "x"})


def test_time_that_is_up_is_told_before_anything_runs() -> None:
    with pytest.raises(DeadlineExceeded):
        admit(row={"timeout_ms": 0})
