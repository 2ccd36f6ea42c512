# SPDX-License-Identifier: Apache-2.0
"""A row that an executor computes, as its call sees it: what came since the last look, and how it ended.

The link's reader feeds rows and never waits for a call: what a slow call has not taken is merged. Does not know text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from protos.batch import Int32Array
from protos.errors import PackserveError
from protos.packserve.v1 import executor_pb2

Float32Array = npt.NDArray[np.float32]
Outcome: TypeAlias = "executor_pb2.Finished | PackserveError"

NO_TOKEN_IDS = np.empty(0, np.int32)


@dataclass(slots=True)
class RowRequest:
    """token_ids: the prompt, then row.num_output_known ids of output."""

    token_ids: Int32Array
    row: executor_pb2.Row
    # On the monotonic clock; row.timeout_ms is filled from it when the row is sent.
    deadline_s: float | None = None


@dataclass(slots=True)
class RowUpdate:
    """first_position is the output position of token_ids[0]. Nothing follows an outcome."""

    token_ids: Int32Array
    first_position: int
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
        "_next_position",
        "_outcome",
        "_start",
        "_token_ids",
        "request",
        "request_id",
        "sent_s",
    )

    def __init__(
        self, request_id: int, request: RowRequest, arrivals: Arrivals, cancel: Callable[[RowStream], None]
    ) -> None:
        self.request_id = request_id
        self.request = request
        self.sent_s = 0.0
        self._arrivals = arrivals
        self._cancel = cancel
        self._is_listed = False
        self._next_position = request.row.num_output_known
        self._token_ids: list[Int32Array] = []
        self._logprobs: list[Float32Array] = []
        self._start: executor_pb2.RowStart | None = None
        self._outcome: Outcome | None = None

    def cancel(self) -> None:
        """Nothing more arrives; the executor hears of it with the next message. Harmless again, or after the end."""
        self._cancel(self)

    def take(self) -> RowUpdate:
        """All that came since the last take."""
        chunks, logprobs = self._token_ids, self._logprobs
        token_ids = chunks[0] if len(chunks) == 1 else np.concatenate(chunks) if chunks else NO_TOKEN_IDS
        update = RowUpdate(
            token_ids,
            self._next_position - len(token_ids),
            np.concatenate(logprobs) if logprobs else None,
            self._start,
            self._outcome,
        )
        self._token_ids, self._logprobs, self._start, self._is_listed = [], [], None, False
        return update

    def feed(self, token_ids: Int32Array, first_position: int, logprobs: Float32Array | None) -> None:
        """By the reader. Raises PackserveError where ids are missing or come again."""
        if first_position != self._next_position:
            raise PackserveError(f"output position is {first_position}, expected {self._next_position}")
        self._next_position += len(token_ids)
        self._token_ids.append(token_ids)
        if logprobs is not None:
            self._logprobs.append(logprobs)
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
