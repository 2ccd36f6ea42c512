# SPDX-License-Identifier: Apache-2.0
"""Between the error tree and gRPC: the one place that knows status codes."""

from __future__ import annotations

import grpc

from protos import errors

# Details travel in an HTTP/2 trailer of at most 8 KiB; a longer one would reach the caller as another status.
MAX_DETAIL_CHARS = 512

CODES: dict[type[errors.PackserveError], grpc.StatusCode] = {
    errors.InvalidRequest: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotSupported: grpc.StatusCode.UNIMPLEMENTED,
    errors.NotReady: grpc.StatusCode.FAILED_PRECONDITION,
    errors.LimitReached: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.RequestCancelled: grpc.StatusCode.CANCELLED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.PackserveError: grpc.StatusCode.INTERNAL,
}
_ERRORS = {code.value[0]: error for error, code in CODES.items()}


def status_code(error: errors.PackserveError) -> grpc.StatusCode:
    """Of the nearest class in the table."""
    return next(CODES[cls] for cls in type(error).__mro__ if cls in CODES)


def code_number(error: errors.PackserveError) -> int:
    """As google.rpc.Code, for errors that travel inside a message."""
    return int(status_code(error).value[0])


def detail(error: Exception) -> str:
    text = str(error)
    return text if len(text) <= MAX_DETAIL_CHARS else text[: MAX_DETAIL_CHARS - 3] + "..."


def error_from_code(code: int, text: str) -> errors.PackserveError:
    """The error that a peer reported by number."""
    return _ERRORS.get(code, errors.PackserveError)(text)
