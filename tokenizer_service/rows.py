# SPDX-License-Identifier: Apache-2.0
"""A row that an executor computes, as its call sees it: what came since the last look, and how it ended.

The link's reader feeds rows and never waits for a call: what a slow call has not taken is merged, and is never more
than the row was to bring. Does not know text.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from protos.batch import Int32Array
from protos.errors import LimitReached, PackserveError
from protos.packserve.v1 import executor_pb2, sampling_pb2
from tokenizer_service.logprobs import Logprobs, LogprobsBuffer

Outcome: TypeAlias = "executor_pb2.Finished | PackserveError"

# Of one take, so that what a stalled call finds still fits a message: ids, and those that logprobs tell beside each.
MAX_TAKE_TOKENS = 4096


@dataclass(slots=True)
class RowRequest:
    """token_ids: the prompt, then row.num_output_known ids of output."""

    token_ids: Int32Array
    row: executor_pb2.Row
    # On the monotonic clock; row.timeout_ms is filled from it when the row is sent.
    deadline_s: float | None = None


@dataclass(slots=True)
class RowUpdate:
    """Nothing follows an outcome. Logprobs of the prompt's ids come in order, from the second on, before any output."""

    token_ids: Int32Array
    logprobs: Logprobs | None
    prompt_logprobs: Logprobs | None
    start: executor_pb2.RowStart | None
    outcome: Outcome | None


class Arrivals:
    """The rows of one call that have something new. One future wakes the call, however many rows it has."""

    __slots__ = ("_rows", "_waiter")

    def __init__(self) -> None:
        self._rows: list[RowStream] = []
        self._waiter: asyncio.Future[None] | None = None

    def add(self, row: RowStream) -> None:
        self._rows.append(row)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> list[RowStream]:
        """Waits until there is one; each is listed once."""
        if not self._rows:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        rows, self._rows = self._rows, []
        return rows


class RowStream:
    """The prompt's logprobs where they were asked for, then ids, both in order, without gap or repetition, then exactly
    one outcome.
    """

    __slots__ = (
        "_arrivals",
        "_cancel",
        "_is_listed",
        "_logprobs",
        "_max_tokens",
        "_next_position",
        "_next_prompt_position",
        "_num_prompt_tokens",
        "_outcome",
        "_prompt_logprobs",
        "_start",
        "_token_ids",
        "request",
        "request_id",
        "sent_s",
    )

    def __init__(
        self,
        request_id: int,
        request: RowRequest,
        arrivals: Arrivals,
        max_context_tokens: int,
        cancel: Callable[[RowStream], None],
    ) -> None:
        self.request_id = request_id
        self.request = request
        self.sent_s = 0.0
        self._arrivals = arrivals
        self._cancel = cancel
        self._is_listed = False
        sampling = request.row.sampling
        asked = sampling.max_tokens if sampling.HasField("max_tokens") else max_context_tokens
        self._max_tokens = min(asked, max_context_tokens)
        self._next_position = request.row.num_output_known
        self._token_ids = array("i")
        self._logprobs = LogprobsBuffer(_asked(sampling, "logprobs"))
        self._num_prompt_tokens = len(request.token_ids) - request.row.num_output_known
        # Whoever knows output of the row was told them before.
        wants_prompt = not request.row.num_output_known
        self._prompt_logprobs = LogprobsBuffer(_asked(sampling, "prompt_logprobs") if wants_prompt else None)
        self._next_prompt_position = 1
        self._start: executor_pb2.RowStart | None = None
        self._outcome: Outcome | None = None

    def cancel(self) -> None:
        """Nothing more arrives; the executor hears of it with the next message. Harmless again, or after the end."""
        self._cancel(self)

    def take(self) -> RowUpdate:
        """What came since the last take. Where that is more than MAX_TAKE_TOKENS, the row is listed again."""
        prompt_logprobs = self._prompt_logprobs.take(MAX_TAKE_TOKENS // self._prompt_logprobs.num_numbers)
        most = 0 if prompt_logprobs is not None else MAX_TAKE_TOKENS // self._logprobs.num_numbers
        token_ids, self._token_ids = self._token_ids[:most], self._token_ids[most:]
        logprobs = self._logprobs.take(most) if most else None
        has_more = bool(self._prompt_logprobs or self._token_ids)
        update = RowUpdate(
            np.array(token_ids, np.int32),
            logprobs,
            prompt_logprobs,
            self._start,
            None if has_more else self._outcome,
        )
        self._start, self._is_listed = None, False
        if has_more:
            self._arrive()
        return update

    def feed_prompt(self, logprobs: Logprobs, first_position: int) -> None:
        """By the reader; copies. Raises PackserveError as feed() does."""
        if first_position != self._next_prompt_position:
            raise PackserveError(f"prompt position is {first_position}, expected {self._next_prompt_position}")
        end = first_position + len(logprobs)
        if end > self._num_prompt_tokens:
            raise LimitReached(f"the executor scored {end} prompt tokens, the prompt has {self._num_prompt_tokens}")
        self._prompt_logprobs.feed(logprobs)
        self._next_prompt_position = end
        self._arrive()

    def feed(self, token_ids: Int32Array, first_position: int, logprobs: Logprobs | None) -> None:
        """By the reader; copies. Raises PackserveError where ids are missing, come again, are none or too many, and
        where they come without the logprobs that were asked for.
        """
        if first_position != self._next_position:
            raise PackserveError(f"output position is {first_position}, expected {self._next_position}")
        if len(token_ids) and token_ids.min() < 0:
            raise PackserveError(f"output token id is {token_ids.min()}, must be 0 or more")
        num_tokens = first_position + len(token_ids)
        if num_tokens > self._max_tokens:
            raise LimitReached(f"the executor sent {num_tokens} output tokens, the row takes {self._max_tokens}")
        self._feed_logprobs(len(token_ids), logprobs)
        self._next_position = num_tokens
        self._token_ids.frombytes(token_ids.tobytes())
        self._arrive()

    def _feed_logprobs(self, num_tokens: int, logprobs: Logprobs | None) -> None:
        if self._prompt_logprobs.is_wanted and self._next_prompt_position < self._num_prompt_tokens:
            raise PackserveError(
                f"output came after {self._next_prompt_position} of {self._num_prompt_tokens} prompt tokens were scored"
            )
        num_logprobs = 0 if logprobs is None else len(logprobs)
        if num_logprobs != (num_tokens if self._logprobs.is_wanted else 0):
            raise PackserveError(f"the executor sent {num_logprobs} logprobs for {num_tokens} tokens")
        if logprobs is not None:
            self._logprobs.feed(logprobs)

    def begin(self, start: executor_pb2.RowStart) -> None:
        """By the reader."""
        self._start = start

    def end(self, outcome: Outcome) -> None:
        """By the reader; the last that it says."""
        self._outcome = outcome
        self._arrive()

    def _arrive(self) -> None:
        if not self._is_listed:
            self._is_listed = True
            self._arrivals.add(self)


def _asked(sampling: sampling_pb2.SamplingParameters, field: Literal["logprobs", "prompt_logprobs"]) -> int | None:
    return getattr(sampling, field) if sampling.HasField(field) else None
