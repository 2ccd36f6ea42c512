# SPDX-License-Identifier: Apache-2.0
"""ExecutorService: the handshake, then a stream's rows and news.

From the wire, call, to the wire. Does not know the engine's inside.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

from executor_service.wire.stream import Stream
from executor_service.wire.streams import Streams
from protos.calls import Context
from protos.errors import InvalidRequest, NotReady, PackserveError, Unavailable
from protos.packserve.v1 import executor_pb2, executor_pb2_grpc
from protos.server import PROTOCOL_VERSION

HELLO_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)


class ExecutorServicer(executor_pb2_grpc.ExecutorServiceServicer):
    """Answers UNAVAILABLE until open() is called: the port is there before the model is loaded."""

    def __init__(self) -> None:
        self._serving: tuple[Streams, executor_pb2.Welcome] | None = None

    def open(self, streams: Streams, welcome: executor_pb2.Welcome) -> None:
        self._serving = (streams, welcome)

    async def Execute(
        self, requests: AsyncIterator[executor_pb2.ExecuteRequest], context: Context
    ) -> AsyncIterator[executor_pb2.ExecuteResponse]:
        if self._serving is None:
            raise Unavailable("the model is loading")
        streams, welcome = self._serving
        call = asyncio.current_task()
        assert call is not None
        with streams.open(end_call=call.cancel) as stream:
            check_hello(await _first(requests), welcome)
            yield executor_pb2.ExecuteResponse(welcome=welcome, load=streams.load())
            reading = asyncio.create_task(_read(requests, stream))
            try:
                async for response in stream.responses():
                    yield response
            finally:
                reading.cancel()


async def _first(requests: AsyncIterator[executor_pb2.ExecuteRequest]) -> executor_pb2.ExecuteRequest:
    try:
        async with asyncio.timeout(HELLO_TIMEOUT_S):
            return await anext(aiter(requests), executor_pb2.ExecuteRequest())
    except TimeoutError:
        raise InvalidRequest(f"hello did not come within {HELLO_TIMEOUT_S:g} s") from None


async def _read(requests: AsyncIterator[executor_pb2.ExecuteRequest], stream: Stream) -> None:
    """What ends the reading ends the stream: its own end when the rows are answered, an error at once."""
    try:
        async for request in requests:
            stream.receive(request)
    except PackserveError as error:
        stream.outbox.close(error)
    except Exception:
        log.exception("a request could not be read")
        stream.outbox.close(PackserveError("internal error"))
    else:
        stream.half_close()


def check_hello(request: executor_pb2.ExecuteRequest, welcome: executor_pb2.Welcome) -> None:
    if not request.HasField("hello"):
        raise InvalidRequest("hello is missing: it is the first request of a stream")
    if request.rows or request.cancelled_request_ids or request.HasField("batch"):
        raise InvalidRequest("hello came with rows or cancellations: it stands alone in its request")
    hello, vocabulary_sha256 = request.hello, welcome.fingerprint.vocabulary_sha256
    if hello.protocol_version != PROTOCOL_VERSION:
        raise NotReady(f"hello.protocol_version is {hello.protocol_version}, this executor speaks {PROTOCOL_VERSION}")
    if hello.vocabulary_sha256 != vocabulary_sha256:
        raise NotReady(
            f"hello.vocabulary_sha256 is {hello.vocabulary_sha256[:12]}, this executor's is {vocabulary_sha256[:12]}:"
            " the tokenizer belongs to another model"
        )
