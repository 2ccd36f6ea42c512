# SPDX-License-Identifier: Apache-2.0
"""The rows that are open on one stream, and what they are as messages: up as they wait, down as a step brings them.

All that waits leaves together. Dispatching never waits for a call. Does not know the connection.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

from protos.batch import TokenBatch
from protos.errors import InvalidRequest, LimitReached, PackserveError, RequestCancelled
from protos.packserve.v1 import executor_pb2
from protos.rpc import error_from_code
from tokenizer_service.logprobs import Logprobs
from tokenizer_service.packing import MAX_ROW_BYTES, PackedRow, pack_requests
from tokenizer_service.rows import Arrivals, Outcome, RowRequest, RowStream


class OpenRows:
    """A request id is never used again. on_wire hears seconds that a row's first ids and their answer travelled."""

    def __init__(self, on_wire: Callable[[float], None]) -> None:
        self.has_work = asyncio.Event()
        self._on_wire = on_wire
        self._request_ids = count(1)
        self._rows: dict[int, RowStream] = {}
        self._unsent: dict[int, RowStream] = {}
        self._cancelled: list[int] = []

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def num_sent(self) -> int:
        """Rows that the executor can know of."""
        return len(self._rows) - len(self._unsent)

    def submit(self, request: RowRequest, arrivals: Arrivals, max_context_tokens: int) -> RowStream:
        """Raises LimitReached for a row that no message takes, whatever its ids."""
        if (num_bytes := request.row.ByteSize()) > MAX_ROW_BYTES:
            raise LimitReached(f"the parameters take {num_bytes} bytes, a row may have {MAX_ROW_BYTES}")
        row = RowStream(next(self._request_ids), request, arrivals, max_context_tokens, self._cancel)
        self._rows[row.request_id] = self._unsent[row.request_id] = row
        self.has_work.set()
        return row

    def _cancel(self, row: RowStream) -> None:
        if self._rows.pop(row.request_id, None) is None:
            return
        if self._unsent.pop(row.request_id, None) is None:
            self._cancelled.append(row.request_id)
            self.has_work.set()

    def take_work(self) -> Iterator[executor_pb2.ExecuteRequest]:
        """Messages for all that waits, each made when it is its turn."""
        now_s = time.monotonic()
        rows = [_packed(row, now_s) for row in self._unsent.values()]
        cancelled, self._cancelled = self._cancelled, []
        self._unsent.clear()
        self.has_work.clear()
        return pack_requests(rows, cancelled)

    def dispatch(self, step: executor_pb2.StepOutput) -> None:
        """Each part to its row. Rows that were cancelled are passed over: the executor had not heard yet.

        Raises InvalidRequest where the message contradicts itself.
        """
        for start in step.starts:
            if row := self._rows.get(start.request_id):
                row.begin(start)
                self._on_wire(max(0.0, time.monotonic() - row.sent_s - start.elapsed_us / 1e6))
        for entry in step.prompt_logprobs:
            logprobs = Logprobs.from_wire(entry)
            if row := self._rows.get(entry.request_id):
                with _ending(row):
                    row.feed_prompt(logprobs, entry.first_position)
        self._dispatch_ids(step)
        for terminal in step.terminals:
            if row := self._rows.pop(terminal.request_id, None):
                row.end(_outcome(terminal))

    def _dispatch_ids(self, step: executor_pb2.StepOutput) -> None:
        batch, positions = TokenBatch.from_wire(step.batch), step.first_positions
        if len(positions) != len(batch):
            raise InvalidRequest(f"first_positions has {len(positions)} entries, the batch has {len(batch)} rows")
        logprobs = {entry.row: Logprobs.from_wire(entry) for entry in step.logprobs}
        for i, (request_id, token_ids) in enumerate(batch):
            if row := self._rows.get(request_id):
                with _ending(row):
                    row.feed(token_ids, positions[i], logprobs.get(i))

    def end_all(self, error: PackserveError) -> None:
        """The stream is gone, and what waited for it."""
        rows = list(self._rows.values())
        for waiting in (self._rows, self._unsent, self._cancelled):
            waiting.clear()
        for row in rows:
            row.end(error)


def _packed(row: RowStream, now_s: float) -> PackedRow:
    request = row.request
    row.sent_s = now_s
    if request.deadline_s is not None:
        request.row.timeout_ms = max(0, int((request.deadline_s - now_s) * 1000))
    return row.request_id, request.token_ids, request.row


@contextmanager
def _ending(row: RowStream) -> Iterator[None]:
    """What should not have come ends the row, and no other."""
    try:
        yield
    except PackserveError as error:
        row.cancel()
        row.end(error)


def _outcome(terminal: executor_pb2.Terminal) -> Outcome:
    match terminal.WhichOneof("outcome"):
        case "finished":
            return terminal.finished
        case "error":
            return error_from_code(terminal.error.code, terminal.error.detail)
        case _:
            return RequestCancelled("the executor cancelled the row")
