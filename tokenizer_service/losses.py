# SPDX-License-Identifier: Apache-2.0
"""Why the stream to an executor ended, in words, and whether the executor would be refused again.

Any exception is one: what is not foreseen is a lost stream too, not a dead link.
"""

from __future__ import annotations

import asyncio

import grpc

from protos.errors import NotReady, PackserveError

ENDED = "the stream ended"


def cause(error: Exception) -> Exception:
    """The first of a group: reader and writer end together."""
    first = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
    return cause(first) if isinstance(first, ExceptionGroup) else first


def is_refusal(error: Exception) -> bool:
    """By them or by us; it stays so until somebody changes one of both."""
    if isinstance(error, grpc.aio.AioRpcError):
        return error.code() is grpc.StatusCode.FAILED_PRECONDITION
    return isinstance(error, NotReady)


def is_foreseen(error: Exception) -> bool:
    return isinstance(error, grpc.aio.AioRpcError | asyncio.InvalidStateError | TimeoutError | PackserveError)


def reason(error: Exception, patience_s: float) -> str:
    """patience_s: how long nothing may be heard."""
    match error:
        case grpc.aio.AioRpcError():
            return f"{error.code().name}: {error.details()}"
        case asyncio.InvalidStateError():  # it ended before it could be written to
            return ENDED
        case TimeoutError():
            return f"nothing was heard for {patience_s:g} s"
        case PackserveError():
            return str(error)
        case _:
            return f"{type(error).__name__}: {error}"
