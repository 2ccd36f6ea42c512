# SPDX-License-Identifier: Apache-2.0
"""Around every call of a service: counts it, refuses it while starting or draining, turns what it raises into a status.

Does not know what a call does. Health and reflection pass through: they answer until the very end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from protos.errors import InvalidRequest, PackserveError
from protos.rpc import detail, status_code

Context = grpc.aio.ServicerContext[Any, Any]

logger = logging.getLogger(__name__)


class Calls(grpc.aio.ServerInterceptor):
    """The calls that are open now. While closed, new ones are refused with the reason given."""

    def __init__(self) -> None:
        self.num_open = 0
        self._refusal: str | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    def open(self) -> None:
        self._refusal = None

    def close(self, reason: str) -> None:
        self._refusal = reason

    async def wait_idle(self) -> None:
        await self._idle.wait()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = await continuation(handler_call_details)
        if handler_call_details.method.startswith("/grpc."):
            return handler
        if self._refusal is not None:
            return grpc.unary_unary_rpc_method_handler(self._refuse)
        return handler and self._guarded(handler)

    async def _refuse(self, _request: Any, context: Context) -> None:
        await context.abort(grpc.StatusCode.UNAVAILABLE, self._refusal or "")

    def _guarded(self, handler: Any) -> grpc.RpcMethodHandler[Any, Any]:
        words = {True: "stream", False: "unary"}
        kind = f"{words[handler.request_streaming]}_{words[handler.response_streaming]}"
        method, new_handler = getattr(handler, kind), getattr(grpc, f"{kind}_rpc_method_handler")
        parse = _parser(handler.request_deserializer, handler.request_streaming)
        guarded = self._stream(method, parse) if handler.response_streaming else self._unary(method, parse)
        # Bytes are parsed by the call itself, so that what can't be parsed is answered like any other bad request.
        result: grpc.RpcMethodHandler[Any, Any] = new_handler(guarded, None, handler.response_serializer)
        return result

    def _unary(
        self, method: Callable[[Any, Context], Awaitable[Any]], parse: Callable[[Any], Any]
    ) -> Callable[[Any, Context], Awaitable[Any]]:
        async def call(request: Any, context: Context) -> Any:
            async with self._open(context):
                return await method(parse(request), context)

        return call

    def _stream(
        self, method: Callable[[Any, Context], Any], parse: Callable[[Any], Any]
    ) -> Callable[[Any, Context], Awaitable[None]]:
        # Written rather than yielded: a call that is cancelled while its caller is slow still runs its `finally` here.
        async def call(request: Any, context: Context) -> None:
            async with self._open(context), aclosing(method(parse(request), context)) as responses:
                async for response in responses:
                    await context.write(response)

        return call

    @asynccontextmanager
    async def _open(self, context: Context) -> AsyncIterator[None]:
        self.num_open += 1
        self._idle.clear()
        try:
            yield
        except PackserveError as error:
            await context.abort(status_code(error), detail(error))
        except grpc.aio.AbortError:
            raise
        except asyncio.CancelledError:
            # By the caller, who hears nothing any more; or by ourselves, where gRPC alone would leave it waiting.
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the server ended the call")
        except Exception:
            logger.exception("a call failed")
            await context.abort(grpc.StatusCode.INTERNAL, "internal error")
        finally:
            self.num_open -= 1
            if not self.num_open:
                self._idle.set()


def _parser(deserialize: Callable[[bytes], Any], is_stream: bool) -> Callable[[Any], Any]:
    """Of a request's bytes, or of a stream of them. Raises InvalidRequest where they are no message of the type."""

    def parse(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError as error:
            raise InvalidRequest(f"the request's {len(data)} bytes are no message of its type") from error

    async def parse_each(stream: AsyncIterator[bytes]) -> AsyncIterator[Any]:
        async for data in stream:
            yield parse(data)

    return parse_each if is_stream else parse
