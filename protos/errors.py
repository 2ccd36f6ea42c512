# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, in the domain's words. Only protos/rpc.py knows status codes.

A message is short, names the field and gives both numbers: it travels in a trailer.
"""


class PackserveError(Exception):
    """The root; raised itself only for our own mistakes (INTERNAL)."""


class InvalidRequest(PackserveError):
    """A value that no server would take."""


class PromptTooLong(InvalidRequest):
    """More tokens than the model's context leaves room for."""


class NotSupported(PackserveError):
    """A field or method of the contract that this server does not honour."""


class NotReady(PackserveError):
    """The request is right, but this model or server can't answer it: no chat template, another vocabulary."""


class LimitReached(PackserveError):
    """A bound that more load would break: queue, buffer, message."""


class DeadlineExceeded(PackserveError):
    """The caller's time ran out."""


class RequestCancelled(PackserveError):
    """The caller, or the end of its stream, cancelled the request."""


class Unavailable(PackserveError):
    """No executor can take the request now, or the one that had it is gone; a later try may work."""


class ModelFailure(PackserveError):
    """The model gave numbers that are no logits (INTERNAL); other rows are right."""


class EngineFailure(PackserveError):
    """The executor's engine ended by an error of its own; the process has to be started again."""


class ConfigError(PackserveError):
    """A setting, or a model directory, that stops the start. Names itself."""
