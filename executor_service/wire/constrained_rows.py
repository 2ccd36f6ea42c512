# SPDX-License-Identifier: Apache-2.0
"""Rows of one stream that wait for their grammar before the engine gets them.

On the event loop. Does not know how a grammar is compiled, nor the wire.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic

from executor_service.scheduling.sequence import Grammar, Sequence
from protos.errors import DeadlineExceeded, PackserveError

log = logging.getLogger(__name__)

# Hands over the sequence with its grammar, or why there is none.
Done = Callable[[Sequence, PackserveError | None], None]


class ConstrainedRows:
    """By request id. Each row that was started is handed to `done` once, unless it is dropped before."""

    def __init__(self, done: Done) -> None:
        self._done = done
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, sequence: Sequence, grammar: Awaitable[Grammar]) -> None:
        self._tasks[sequence.key.request_id] = asyncio.create_task(self._wait(sequence, grammar))

    def drop(self, request_id: int) -> bool:
        """Whether it was waiting here."""
        if (task := self._tasks.pop(request_id, None)) is None:
            return False
        task.cancel()
        return True

    def close(self) -> None:
        for request_id in list(self._tasks):
            self.drop(request_id)

    async def _wait(self, sequence: Sequence, grammar: Awaitable[Grammar]) -> None:
        error: PackserveError | None = None
        try:
            sequence.grammar = await _before(sequence.deadline_s, grammar)
        except PackserveError as refusal:
            error = refusal
        except Exception:
            log.exception("a grammar could not be compiled")
            error = PackserveError("internal error")
        del self._tasks[sequence.key.request_id]
        self._done(sequence, error)


async def _before(deadline_s: float | None, grammar: Awaitable[Grammar]) -> Grammar:
    """deadline_s: on the monotonic clock."""
    try:
        async with asyncio.timeout(None if deadline_s is None else deadline_s - monotonic()):
            return await grammar
    except TimeoutError:
        raise DeadlineExceeded("the deadline passed while the constraint was compiled") from None
