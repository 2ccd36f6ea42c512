# SPDX-License-Identifier: Apache-2.0
"""News of one stream on their way out: written by the engine's thread, read by the stream's call.

A message for each step while the reader keeps up, merged when it does not, bounded. Does not know gRPC.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator

from executor_service.step import RowOutput
from protos.errors import LimitReached

# Steps kept apart; past them news are merged into one message.
MAX_STEPS = 64
MAX_BYTES = 2**20
# What one row's news take on the wire, terminals and starts included, rounded up.
BYTES_PER_OUTPUT = 40
HEARTBEAT_S = 1.0

StepNews = tuple[int, list[RowOutput]]


class Outbox:
    """put() may be called from any thread, everything else from the reader's event loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: deque[StepNews] = deque()
        self._num_outputs = 0
        self._is_closed = False
        self._news = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """The reader fell too far behind: nothing more is kept, and the stream has to end."""
        return self._num_outputs * BYTES_PER_OUTPUT > MAX_BYTES

    def put(self, step: int, outputs: list[RowOutput]) -> None:
        """wake() has to follow on the reader's loop."""
        with self._lock:
            self._num_outputs += len(outputs)
            self._steps.append((step, outputs))
            if self.is_full:
                self._steps.clear()
            elif len(self._steps) > MAX_STEPS:
                merged = [output for _, news in self._steps for output in news]
                self._steps = deque([(step, merged)])

    def wake(self) -> None:
        self._news.set()

    def close(self) -> None:
        """The reader gets what is left, then its end."""
        self._is_closed = True
        self._news.set()

    async def steps(self) -> AsyncIterator[StepNews | None]:
        """None after HEARTBEAT_S without news. Raises LimitReached once the outbox is full."""
        while True:
            news = self._take()
            for step in news:
                yield step
            if news:
                continue
            if self._is_closed:
                return
            if not await self._has_news():
                yield None

    def _take(self) -> deque[StepNews]:
        self._news.clear()
        with self._lock:
            if self.is_full:
                raise LimitReached(f"more than {MAX_BYTES} bytes of output wait for a slow reader")
            news, self._steps, self._num_outputs = self._steps, deque(), 0
        return news

    async def _has_news(self) -> bool:
        try:
            async with asyncio.timeout(HEARTBEAT_S):
                await self._news.wait()
        except TimeoutError:
            return False
        return True
