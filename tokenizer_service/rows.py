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
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from protos.batch import Int32Array
from protos.errors import LimitReached, PackserveError
from protos.packserve.v1 import executor_pb2

Float32Array = npt.NDArray[np.float32]
Outcome: TypeAlias = "executor_pb2.Finished | PackserveError"

# Of one take, so that what a stalled call finds still fits a message.
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
    """Nothing follows an outcome."""

    token_ids: Int32Array
    logprobs: Float32Array | None
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
    """Ids arrive in order, without gap or repetition, then exactly one outcome."""

    __slots__ = (
        "_arrivals",
        "_cancel",
        "_is_listed",
        "_logprobs",
        "_max_tokens",
        "_next_position",
        "_outcome",
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
        self._logprobs = array("f")
        self._start: executor_pb2.RowStart | None = None
        self._outcome: Outcome | None = None

    def cancel(self) -> None:
        """Nothing more arrives; the executor hears of it with the next message. Harmless again, or after the end."""
        self._cancel(self)

    def take(self) -> RowUpdate:
        """What came since the last take. Where that is more than MAX_TAKE_TOKENS, the row is listed again."""
        token_ids, self._token_ids = self._token_ids[:MAX_TAKE_TOKENS], self._token_ids[MAX_TAKE_TOKENS:]
        logprobs, self._logprobs = self._logprobs[:MAX_TAKE_TOKENS], self._logprobs[MAX_TAKE_TOKENS:]
        update = RowUpdate(
            np.array(token_ids, np.int32),
            np.array(logprobs, np.float32) if logprobs else None,
            self._start,
            None if self._token_ids else self._outcome,
        )
        self._start, self._is_listed = None, False
        if self._token_ids:
            self._arrive()
        return update

    def feed(self, token_ids: Int32Array, first_position: int, logprobs: Float32Array | None) -> None:
        """By the reader; copies. Raises PackserveError where ids are missing, come again, are none or too many."""
        if first_position != self._next_position:
            raise PackserveError(f"output position is {first_position}, expected {self._next_position}")
        if len(token_ids) and token_ids.min() < 0:
            raise PackserveError(f"output token id is {token_ids.min()}, must be 0 or more")
        num_tokens = first_position + len(token_ids)
        if num_tokens > self._max_tokens:
            raise LimitReached(f"the executor sent {num_tokens} output tokens, the row takes {self._max_tokens}")
        if logprobs is not None and len(logprobs) != len(token_ids):
            raise PackserveError(f"the executor sent {len(logprobs)} logprobs for {len(token_ids)} tokens")
        self._next_position = num_tokens
        self._token_ids.frombytes(token_ids.tobytes())
        if logprobs is not None:
            self._logprobs.frombytes(logprobs.tobytes())
        self._arrive()

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
