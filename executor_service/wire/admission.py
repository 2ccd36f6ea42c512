# SPDX-License-Identifier: Apache-2.0
"""The door: a row from the wire is checked and becomes a Sequence, or an error that names the field and both numbers.

Nothing behind it checks a caller's values again. Does not know the engine.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from time import monotonic

import numpy as np

from executor_service.scheduling.banned import BadBytes, BadTokenIds, Pieces
from executor_service.scheduling.sequence import Banned, RowKey, Sampling, Sequence
from protos.batch import Int32Array, check_token_range
from protos.errors import DeadlineExceeded, InvalidRequest, NotReady, PromptTooLong
from protos.packserve.v1 import executor_pb2, sampling_pb2
from protos.sampling import check_sampling, check_token_ids
from protos.supported import refuse_unsupported
from protos.vocabulary import Vocabulary

UNSUPPORTED = frozenset(f"packserve.v1.Row.{name}" for name in ("tenant", "traceparent", "tracestate"))

# Room for output that a sequence begins with; it grows by doubling.
_FIRST_OUTPUT_TOKENS = 64


@dataclass(frozen=True)
class Admission:
    """What rows are checked against. defaults: taken where a row leaves a field unset.

    vocabulary: the bytes of ids, for bad_bytes alone; rows that have any are refused without it.
    """

    vocabulary_size: int
    max_context_tokens: int
    eos_token_ids: frozenset[int]
    defaults: sampling_pb2.SamplingParameters
    vocabulary: Vocabulary | None = None

    def __post_init__(self) -> None:
        if self.vocabulary is not None:
            self._pieces  # noqa: B018 made now, not while a row waits

    def admit(self, key: RowKey, token_ids: Int32Array, row: executor_pb2.Row) -> Sequence:
        """token_ids: int32 [n], the prompt and then row.num_output_known ids of output. Raises PackserveError.

        The row's constraint is not looked at beyond its size: the sequence has no grammar yet.
        """
        refuse_unsupported(row, UNSUPPORTED)
        check_sampling(row.sampling)
        check_token_ids(row.sampling, self.vocabulary_size)
        self._check_ids(token_ids, row)
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
        banned = self._banned(parameters)
        return Sequence(
            key,
            _with_room(token_ids, min(max_output_tokens - row.num_output_known, _FIRST_OUTPUT_TOKENS)),
            num_known=len(token_ids),
            num_prompt_tokens=num_prompt_tokens,
            max_output_tokens=max_output_tokens,
            min_output_tokens=parameters.min_tokens,
            sampling=self._sampling(parameters, row.choice_index, tuple(chain.from_iterable(b.always for b in banned))),
            stop_token_ids=self._stop_token_ids(parameters),
            banned=banned,
            priority=row.priority,
            cache_salt=row.cache_salt,
            arrival_s=now_s,
            deadline_s=_deadline_s(row, now_s),
            # Whoever has output of the row has its prompt's logprobs too.
            num_scored=num_prompt_tokens if row.num_output_known else 1,
        )

    def _check_ids(self, token_ids: Int32Array, row: executor_pb2.Row) -> None:
        num_tokens = len(token_ids)
        if num_tokens - row.num_output_known < 1:
            raise InvalidRequest(f"the prompt is empty: {num_tokens} ids, {row.num_output_known} of them output")
        if num_tokens >= self.max_context_tokens:
            raise PromptTooLong(
                f"the row has {num_tokens} tokens, the context is {self.max_context_tokens}"
                f" and at least one is for output"
            )
        check_token_range(token_ids, self.vocabulary_size, "token_ids")

    def _sampling(
        self, parameters: sampling_pb2.SamplingParameters, choice_index: int, banned_token_ids: tuple[int, ...]
    ) -> Sampling:
        def given(name: str, default: float) -> float:
            return float(getattr(parameters, name)) if parameters.HasField(name) else default

        def asked(name: str) -> int | None:
            return int(getattr(parameters, name)) if parameters.HasField(name) else None

        return Sampling(
            temperature=given("temperature", 1.0),
            # 0 keeps all: so do -1 and as many as there are.
            top_k=parameters.top_k if 0 < parameters.top_k < self.vocabulary_size else 0,
            top_p=given("top_p", 1.0),
            min_p=parameters.min_p,
            repetition_penalty=given("repetition_penalty", 1.0),
            presence_penalty=parameters.presence_penalty,
            frequency_penalty=parameters.frequency_penalty,
            logit_bias=tuple(sorted(parameters.logit_bias.items())),
            allowed_token_ids=_distinct(np.array(parameters.allowed_token_ids, np.int32).tobytes()),
            banned_token_ids=banned_token_ids,
            seed=parameters.seed if parameters.HasField("seed") else secrets.randbits(64),
            choice_index=choice_index,
            logprobs=asked("logprobs"),
            prompt_logprobs=asked("prompt_logprobs"),
        )

    def _stop_token_ids(self, parameters: sampling_pb2.SamplingParameters) -> frozenset[int]:
        own = frozenset(parameters.stop_token_ids)
        return own if parameters.ignore_eos else own | self.eos_token_ids

    def _banned(self, parameters: sampling_pb2.SamplingParameters) -> tuple[Banned, ...]:
        banned: list[Banned] = []
        if parameters.bad_token_ids:
            banned.append(BadTokenIds(list(bad.token_ids) for bad in parameters.bad_token_ids))
        if parameters.bad_bytes:
            banned.append(BadBytes(parameters.bad_bytes, self._pieces))
        return tuple(banned)

    @cached_property
    def _pieces(self) -> Pieces:
        if self.vocabulary is None:
            raise NotReady("sampling.bad_bytes needs the bytes of ids, this executor has no vocabulary")
        # A tokenizer may have more pieces than the model's table has rows; only rows can be forbidden.
        pieces = self.vocabulary.pieces[: self.vocabulary_size]
        return Pieces(replace(self.vocabulary, pieces=pieces))


def _with_room(token_ids: Int32Array, num_tokens: int) -> Int32Array:
    """A copy of its own: the wire's is a read-only view of the message."""
    return np.concatenate([token_ids, np.zeros(num_tokens, np.int32)])


@lru_cache(maxsize=16)
def _distinct(token_ids: bytes) -> tuple[int, ...]:
    """In order. int32 as bytes; a prompt's choices share what may be 65,536 numbers."""
    return tuple(np.unique(np.frombuffer(token_ids, np.int32)).tolist())


def _deadline_s(row: executor_pb2.Row, now_s: float) -> float | None:
    if not row.HasField("timeout_ms"):
        return None
    if row.timeout_ms == 0:
        raise DeadlineExceeded("timeout_ms is 0: the caller's time ran out before the row arrived")
    return now_s + row.timeout_ms / 1000
