# SPDX-License-Identifier: Apache-2.0
"""News of one stream on their way out: written by the engine's thread, read by the stream's call.

A message for each step while the reader keeps up, merged when it does not, bounded. Does not know gRPC.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator

from executor_service.scheduling.step import RowOutput
from executor_service.wire.messages import num_bytes
from protos.errors import LimitReached, PackserveError

# Steps kept apart; past them news are merged into one message.
MAX_STEPS = 64
# Kept for a reader that is behind; what comes at once may be more. A step that scores 8,192 prompt ids, with 20
# alternatives each, takes 1.3 MiB.
MAX_BYTES = 8 * 2**20
HEARTBEAT_S = 1.0

StepNews = tuple[int, list[RowOutput]]


class Outbox:
    """put() may be called from any thread, everything else from the reader's event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: deque[StepNews] = deque()
        self._num_bytes = 0
        self._is_closed = False
        self._error: PackserveError | None = None
        self._news = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """The reader fell too far behind: nothing more is kept, and the stream has to end."""
        return isinstance(self._error, LimitReached)

    def put(self, step: int, outputs: list[RowOutput]) -> None:
        """wake() has to follow on the reader's loop."""
        with self._lock:
            is_behind = bool(self._steps)
            self._num_bytes += sum(map(num_bytes, outputs))
            self._steps.append((step, outputs))
            if is_behind and self._num_bytes > MAX_BYTES:
                self._error = LimitReached(f"{self._num_bytes} bytes of output wait, a reader is given {MAX_BYTES}")
            if self.is_full:
                self._steps.clear()
            elif len(self._steps) > MAX_STEPS:
                merged = [output for _, news in self._steps for output in news]
                self._steps = deque([(step, merged)])

    def wake(self) -> None:
        self._news.set()

    def close(self, error: PackserveError | None = None) -> None:
        """The reader gets what is left, then its end or the error."""
        self._is_closed = True
        self._error = self._error or error
        self._news.set()

    async def steps(self) -> AsyncIterator[StepNews | None]:
        """None after HEARTBEAT_S without news. Raises what it was closed with, or LimitReached once it is full."""
        while True:
            news = self._take()
            for step in news:
                yield step
            if news:
                continue
            if self._error:
                raise self._error
            if self._is_closed:
                return
            if not await self._has_news():
                yield None

    def _take(self) -> deque[StepNews]:
        self._news.clear()
        with self._lock:
            news, self._steps, self._num_bytes = self._steps, deque(), 0
        return news

    async def _has_news(self) -> bool:
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                await self._news.wait()
        except TimeoutError:
            return False
        return True
