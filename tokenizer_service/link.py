# SPDX-License-Identifier: Apache-2.0
"""One executor and the stream to it: Hello and Welcome, rows up, ids and load down, and again after a loss.

However the stream ends, every open row ends with Unavailable. Does not know what messages mean to rows (open_rows.py),
nor which link a row should take (pool.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from protos.errors import Unavailable
from protos.packserve.v1 import executor_pb2, executor_pb2_grpc
from protos.server import MAX_MESSAGE_BYTES
from tokenizer_service import losses
from tokenizer_service.handshake import OtherModel, check_welcome
from tokenizer_service.open_rows import OpenRows
from tokenizer_service.rows import Arrivals, RowRequest, RowStream

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Links do not share connections, nor the state of each other's backoff.
    ("grpc.use_local_subchannel_pool", 1),
)

# An executor says something at least every second.
LOST_AFTER_S = 5.0
# An executor whose last step is older gets no new rows.
STUCK_AFTER_S = 30.0
RETRY_S = 1.0
# A peer of another vocabulary or protocol stays so until somebody changes it.
REFUSED_RETRY_S = 30.0
# One of another model is right as soon as those of the old one are gone.
OTHER_MODEL_RETRY_S = 5.0

ExecuteCall = grpc.aio.StreamStreamCall[executor_pb2.ExecuteRequest, executor_pb2.ExecuteResponse]

logger = logging.getLogger(__name__)


class ExecutorLink:
    """on_change is awaited when the link connects, is lost or refused, or takes rows where it did not, or the reverse.

    on_wire hears seconds spent on the wire. admit raises OtherModel where a Welcome is not of the model that is served.
    """

    def __init__(
        self,
        address: str,
        hello: executor_pb2.Hello,
        on_change: Callable[[], Awaitable[None]],
        on_wire: Callable[[float], None],
        admit: Callable[[executor_pb2.Welcome], None],
        stuck_after_s: float = STUCK_AFTER_S,
    ) -> None:
        self.address = address
        self.welcome: executor_pb2.Welcome | None = None
        self.is_refused = False
        self.is_retired = False
        self._hello = hello
        self._on_change = on_change
        self._admit = admit
        self._stuck_after_s = stuck_after_s
        self._load = executor_pb2.Load()
        self._num_foreign_rows = 0
        self._rows = OpenRows(on_wire)
        self._last_reason = ""

    @property
    def is_connected(self) -> bool:
        return self.welcome is not None

    @property
    def is_leaving(self) -> bool:
        return self.is_retired or self._load.is_draining

    @property
    def is_stuck(self) -> bool:
        return self._load.step_age_ms > self._stuck_after_s * 1000

    @property
    def takes_rows(self) -> bool:
        return self.is_connected and not self.is_leaving and not self.is_stuck

    @property
    def num_open_rows(self) -> int:
        return len(self._rows)

    @property
    def work(self) -> int:
        """Rows that the executor has to share its steps among: ours now, and those of others when it last said."""
        return len(self._rows) + self._num_foreign_rows

    def submit(self, request: RowRequest, arrivals: Arrivals) -> RowStream:
        """Queued for the next message. What comes back is announced to ``arrivals``."""
        if self.welcome is None or not self.takes_rows:
            raise Unavailable(f"executor {self.address} takes no rows")
        return self._rows.submit(request, arrivals, self.welcome.model.max_context_tokens)

    async def run(self) -> None:
        """Connects, and again whenever the stream ends, until retired."""
        async with grpc.aio.insecure_channel(self.address, options=CHANNEL_OPTIONS) as channel:
            stub = executor_pb2_grpc.ExecutorServiceStub(channel)
            while not self.is_retired:
                error = await self._session(stub)
                self.is_refused = losses.is_refusal(error)
                self._log_end(error)
                await self._on_change()
                await asyncio.sleep(self._retry_s(error))

    async def _session(self, stub: Any) -> Exception:
        """One stream, from its Hello to whatever ends it, which is returned. No error of a stream ends the link."""
        error: Exception = Unavailable(losses.ENDED)
        call: ExecuteCall = stub.Execute(wait_for_ready=True)
        try:
            await call.write(executor_pb2.ExecuteRequest(hello=self._hello))
            await self._talk(call)
        except Exception as raised:
            # A task group that is ending already forgets that its task was cancelled.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise asyncio.CancelledError from raised
            error = losses.cause(raised)
        finally:
            call.cancel()
            self.welcome, self._load, self._num_foreign_rows = None, executor_pb2.Load(), 0
            why = losses.reason(error, LOST_AFTER_S)
            self._rows.end_all(Unavailable(f"executor {self.address} is lost: {why}"))
        return error

    def _retry_s(self, error: Exception) -> float:
        if isinstance(error, OtherModel):
            return OTHER_MODEL_RETRY_S
        return REFUSED_RETRY_S if self.is_refused else RETRY_S

    def _log_end(self, error: Exception) -> None:
        """Loud once, not at every try."""
        why = losses.reason(error, LOST_AFTER_S)
        level = logging.DEBUG if why == self._last_reason else logging.ERROR if self.is_refused else logging.WARNING
        self._last_reason = why
        logger.log(level, "executor %s: %s", self.address, why, exc_info=None if losses.is_foreseen(error) else error)

    async def _talk(self, call: Any) -> None:
        """Until the executor ends the stream or falls silent, or reader or writer fails: they end together."""
        async with asyncio.timeout(LOST_AFTER_S) as patience:
            if not (response := await call.read()):
                return
            await self._begin(response.welcome)
            await self._receive(response)
            async with asyncio.TaskGroup() as tasks:
                writer = tasks.create_task(self._write(call))
                await self._read(call, patience)
                writer.cancel()

    async def _begin(self, welcome: executor_pb2.Welcome) -> None:
        check_welcome(welcome, self._hello)
        self._admit(welcome)
        self.welcome, self.is_refused, self._last_reason = welcome, False, ""
        ours, theirs = self._hello.instance_id, welcome.instance_id
        logger.info("executor %s: %s connected to instance %s, %s", self.address, ours, theirs, welcome.model.name)
        await self._on_change()

    async def _read(self, call: Any, patience: asyncio.Timeout) -> None:
        """Until the stream's end, or until the executor is to be left and has no row of ours."""
        while self._rows or not self.is_leaving:
            patience.reschedule(asyncio.get_running_loop().time() + LOST_AFTER_S)
            if not (response := await call.read()):
                return
            await self._receive(response)

    async def _write(self, call: ExecuteCall) -> None:
        """Sends all that waits, as often as something does. The reader sees why a stream broke."""
        try:
            while True:
                await self._rows.has_work.wait()
                for message in self._rows.take_work():
                    await call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return

    async def _receive(self, response: executor_pb2.ExecuteResponse) -> None:
        took_rows = self.takes_rows
        if response.HasField("step"):
            self._rows.dispatch(response.step)
        self._load = load = response.load
        self._num_foreign_rows = max(0, load.num_running + load.num_waiting - self._rows.num_sent)
        if self.takes_rows != took_rows:
            await self._on_change()
