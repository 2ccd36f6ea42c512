# SPDX-License-Identifier: Apache-2.0
"""The door: a row from the wire is checked and becomes a Sequence, or an error that names the field and both numbers.

Nothing behind it checks a caller's values again. Does not know the engine.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from time import monotonic

import numpy as np

from executor_service.sequence import RowKey, Sampling, Sequence
from protos.batch import Int32Array, check_token_range
from protos.errors import DeadlineExceeded, InvalidRequest, PromptTooLong
from protos.packserve.v1 import executor_pb2, sampling_pb2
from protos.sampling import UNSUPPORTED as UNSUPPORTED_SAMPLING
from protos.sampling import check_sampling
from protos.supported import refuse_unsupported

UNSUPPORTED = UNSUPPORTED_SAMPLING | frozenset(
    f"packserve.v1.Row.{name}" for name in ("priority", "tenant", "traceparent", "tracestate")
)

# Room for output that a sequence begins with; it grows by doubling.
_FIRST_OUTPUT_TOKENS = 64


@dataclass(frozen=True)
class Admission:
    """What rows are checked against. defaults: taken where a row leaves a field unset."""

    vocabulary_size: int
    max_context_tokens: int
    eos_token_ids: frozenset[int]
    defaults: sampling_pb2.SamplingParameters

    def admit(self, key: RowKey, token_ids: Int32Array, row: executor_pb2.Row) -> Sequence:
        """token_ids: int32 [n], the prompt and then row.num_output_known ids of output. Raises PackserveError."""
        refuse_unsupported(row, UNSUPPORTED)
        check_sampling(row.sampling)
        self._check_token_ids(token_ids, row)
        parameters = sampling_pb2.SamplingParameters()
        parameters.CopyFrom(self.defaults)
        parameters.MergeFrom(row.sampling)
        num_prompt_tokens = len(token_ids) - row.num_output_known
        max_output_tokens = self.max_context_tokens - num_prompt_tokens
        if parameters.HasField("max_tokens"):
            max_output_tokens = min(max_output_tokens, parameters.max_tokens)
        if row.num_output_known >= max_output_tokens:
            raise InvalidRequest(f"num_output_known is {row.num_output_known}, the row ends at {max_output_tokens}")
        now_s = monotonic()
        return Sequence(
            key,
            _with_room(token_ids, min(max_output_tokens - row.num_output_known, _FIRST_OUTPUT_TOKENS)),
            num_known=len(token_ids),
            num_prompt_tokens=num_prompt_tokens,
            max_output_tokens=max_output_tokens,
            sampling=_sampling(parameters, row.choice_index),
            stop_token_ids=self._stop_token_ids(parameters),
            arrival_s=now_s,
            deadline_s=_deadline_s(row, now_s),
        )

    def _check_token_ids(self, token_ids: Int32Array, row: executor_pb2.Row) -> None:
        num_tokens = len(token_ids)
        if num_tokens - row.num_output_known < 1:
            raise InvalidRequest(f"the prompt is empty: {num_tokens} ids, {row.num_output_known} of them output")
        if num_tokens >= self.max_context_tokens:
            raise PromptTooLong(
                f"the row has {num_tokens} tokens, the context is {self.max_context_tokens}"
                f" and at least one is for output"
            )
        check_token_range(token_ids, self.vocabulary_size, "token_ids")
        stops = np.array(row.sampling.stop_token_ids, np.int32)
        check_token_range(stops, self.vocabulary_size, "sampling.stop_token_ids")

    def _stop_token_ids(self, parameters: sampling_pb2.SamplingParameters) -> frozenset[int]:
        own = frozenset(parameters.stop_token_ids)
        return own if parameters.ignore_eos else own | self.eos_token_ids


def _with_room(token_ids: Int32Array, num_tokens: int) -> Int32Array:
    """A copy of its own: the wire's is a read-only view of the message."""
    return np.concatenate([token_ids, np.zeros(num_tokens, np.int32)])


def _sampling(parameters: sampling_pb2.SamplingParameters, choice_index: int) -> Sampling:
    return Sampling(
        temperature=parameters.temperature if parameters.HasField("temperature") else 1.0,
        top_k=parameters.top_k,
        top_p=parameters.top_p if parameters.HasField("top_p") else 1.0,
        seed=parameters.seed if parameters.HasField("seed") else secrets.randbits(64),
        choice_index=choice_index,
        logprobs=parameters.logprobs if parameters.HasField("logprobs") else None,
    )


def _deadline_s(row: executor_pb2.Row, now_s: float) -> float | None:
    if not row.HasField("timeout_ms"):
        return None
    if row.timeout_ms == 0:
        raise DeadlineExceeded("timeout_ms is 0: the caller's time ran out before the row arrived")
    return now_s + row.timeout_ms / 1000
