# SPDX-License-Identifier: Apache-2.0
"""One executor and the stream to it: Hello and Welcome, rows up, ids and load down, and again after a loss.

When the stream ends, every open row ends with Unavailable. Does not know what messages mean to rows (open_rows.py), nor
which link a row should take (pool.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from protos.errors import NotReady, PackserveError, Unavailable
from protos.packserve.v1 import executor_pb2, executor_pb2_grpc
from protos.server import MAX_MESSAGE_BYTES, PROTOCOL_VERSION
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
RETRY_S = 1.0
# A peer of another vocabulary or protocol stays so until somebody changes it.
REFUSED_RETRY_S = 30.0

ExecuteCall = grpc.aio.StreamStreamCall[executor_pb2.ExecuteRequest, executor_pb2.ExecuteResponse]

logger = logging.getLogger(__name__)


class ExecutorLink:
    """on_change is awaited when the link connects, is lost or is refused; on_wire hears seconds spent on the wire."""

    def __init__(
        self,
        address: str,
        hello: executor_pb2.Hello,
        on_change: Callable[[], Awaitable[None]],
        on_wire: Callable[[float], None],
    ) -> None:
        self.address = address
        self.welcome: executor_pb2.Welcome | None = None
        self.is_refused = False
        self.is_retired = False
        self._hello = hello
        self._on_change = on_change
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
    def takes_rows(self) -> bool:
        return self.is_connected and not self.is_leaving

    @property
    def num_open_rows(self) -> int:
        return len(self._rows)

    @property
    def work(self) -> int:
        """Rows that the executor has to share its steps among: ours now, and those of others when it last said."""
        return len(self._rows) + self._num_foreign_rows

    def submit(self, request: RowRequest, arrivals: Arrivals) -> RowStream:
        """Queued for the next message. What comes back is announced to ``arrivals``."""
        if not self.takes_rows:
            raise Unavailable(f"executor {self.address} takes no rows")
        return self._rows.submit(request, arrivals)

    async def run(self) -> None:
        """Connects, and again whenever the stream ends, until retired."""
        async with grpc.aio.insecure_channel(self.address, options=CHANNEL_OPTIONS) as channel:
            stub = executor_pb2_grpc.ExecutorServiceStub(channel)
            while not self.is_retired:
                await self._session(stub)
                await asyncio.sleep(REFUSED_RETRY_S if self.is_refused else RETRY_S)

    async def _session(self, stub: Any) -> None:
        """One stream, from its Hello to whatever ends it."""
        is_refused, reason = False, "the stream ended"
        call: ExecuteCall = stub.Execute(wait_for_ready=True)
        try:
            await call.write(executor_pb2.ExecuteRequest(hello=self._hello))
            await self._talk(call)
        except grpc.aio.AioRpcError as error:
            is_refused = error.code() is grpc.StatusCode.FAILED_PRECONDITION
            reason = f"{error.code().name}: {error.details()}"
        except asyncio.InvalidStateError:
            pass  # it ended before it could be written to
        except TimeoutError:
            reason = f"nothing was heard for {LOST_AFTER_S:g} s"
        except PackserveError as error:
            is_refused, reason = isinstance(error, NotReady), str(error)
        finally:
            call.cancel()
            self.welcome, self._load, self._num_foreign_rows = None, executor_pb2.Load(), 0
            self._rows.end_all(Unavailable(f"executor {self.address} is lost: {reason}"))
        self.is_refused = is_refused
        self._log_end(reason)
        await self._on_change()

    def _log_end(self, reason: str) -> None:
        """Loud once, not at every try."""
        level = logging.DEBUG if reason == self._last_reason else logging.ERROR if self.is_refused else logging.WARNING
        self._last_reason = reason
        logger.log(level, "executor %s: %s", self.address, reason)

    async def _talk(self, call: Any) -> None:
        """Reads until the executor ends the stream, falls silent, or is to be left and has no row of ours."""
        loop = asyncio.get_running_loop()
        writer: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(LOST_AFTER_S) as patience:
                while response := await call.read():
                    patience.reschedule(loop.time() + LOST_AFTER_S)
                    if writer is None:
                        await self._begin(response)
                        writer = asyncio.create_task(self._write(call))
                    self._receive(response)
                    if self.is_leaving and not self._rows:
                        break
        finally:
            if writer is not None:
                writer.cancel()

    async def _begin(self, response: executor_pb2.ExecuteResponse) -> None:
        welcome = response.welcome
        if welcome.protocol_version != PROTOCOL_VERSION:
            raise NotReady(f"executor's protocol version is {welcome.protocol_version}, ours is {PROTOCOL_VERSION}")
        if welcome.fingerprint.vocabulary_sha256 != self._hello.vocabulary_sha256:
            raise NotReady(
                f"executor's vocabulary is {welcome.fingerprint.vocabulary_sha256[:12]}, "
                f"this tokenizer's {self._hello.vocabulary_sha256[:12]}"
            )
        self.welcome, self.is_refused, self._last_reason = welcome, False, ""
        logger.info("executor %s: connected to instance %s, %s", self.address, welcome.instance_id, welcome.model.name)
        await self._on_change()

    async def _write(self, call: ExecuteCall) -> None:
        """Sends all that waits, as often as something does. The reader sees why a stream broke."""
        try:
            while True:
                await self._rows.has_work.wait()
                for message in self._rows.take_work():
                    await call.write(message)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return

    def _receive(self, response: executor_pb2.ExecuteResponse) -> None:
        if response.HasField("step"):
            self._rows.dispatch(response.step)
        self._load = load = response.load
        self._num_foreign_rows = max(0, load.num_running + load.num_waiting - len(self._rows))
