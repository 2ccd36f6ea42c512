# SPDX-License-Identifier: Apache-2.0
"""The grammar worker as the executor sees it: started when it is needed, killed when it takes too long, started again.

On the event loop. Does not know what the worker does.
"""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from contextlib import suppress

from executor_service.grammar.frames import LENGTH_BYTES, frame
from protos.errors import LimitReached, Unavailable

MAX_COMPILE_S = 5.0
# Beside what the worker takes before its first constraint.
MAX_COMPILE_BYTES = 512 * 2**20
MAX_WAITING = 256
_MAX_START_S = 60.0
_PROGRAM = "executor_service.grammar.worker"


class GrammarProcess:
    """One constraint at a time. vocabulary: of `frames.pack_pieces`."""

    def __init__(self, vocabulary: bytes, max_s: float = MAX_COMPILE_S, max_bytes: int = MAX_COMPILE_BYTES) -> None:
        self._vocabulary = vocabulary
        self._max_s = max_s
        self._max_bytes = max_bytes
        self._process: Process | None = None
        self._turn = asyncio.Lock()
        self._num_waiting = 0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def compile(self, constraint: bytes) -> bytes:
        """The worker's answer to a Constraint, of `frames`. Raises LimitReached naming the bound.

        When it is cancelled its constraint leaves the queue, or the worker that is at it ends.
        """
        if self._num_waiting >= MAX_WAITING:
            raise LimitReached(f"{self._num_waiting} constraints wait to be compiled, the limit is {MAX_WAITING}")
        self._num_waiting += 1
        try:
            async with self._turn:
                return await self._ask(constraint)
        finally:
            self._num_waiting -= 1

    async def _ask(self, constraint: bytes, is_retry: bool = False) -> bytes:
        process = await self._running()
        try:
            return await self._exchange(process, constraint, self._max_s)
        except TimeoutError:
            raise LimitReached(f"the constraint takes more than {self._max_s:g} s to compile") from None
        except (asyncio.IncompleteReadError, ConnectionError):
            if is_retry:
                bound = f"{self._max_bytes // 2**20} MiB of memory"
                raise LimitReached(f"the constraint takes more than {bound}, or too deep a stack, to compile") from None
        # Somebody may have killed it; its own limits would end it again.
        return await self._ask(constraint, is_retry=True)

    async def _running(self) -> Process:
        if self._process and self._process.returncode is None:
            return self._process
        command = (sys.executable, "-m", _PROGRAM, str(os.getpid()), str(self._max_bytes))
        self._process = process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL
        )
        try:
            await self._exchange(process, self._vocabulary, _MAX_START_S)
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
            raise Unavailable("the process that compiles constraints does not start") from None
        return process

    async def _exchange(self, process: Process, content: bytes, max_s: float) -> bytes:
        """Whatever ends it before the answer ends the process too: a late answer would be taken for the next one's."""
        answer = None
        try:
            async with asyncio.timeout(max_s):
                answer = await _exchange(process, content)
        finally:
            if answer is None:
                await self.kill()
        return answer

    async def kill(self) -> None:
        """Returns when it is gone. The next constraint starts another."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def _exchange(process: Process, content: bytes) -> bytes:
    assert process.stdin
    assert process.stdout
    process.stdin.write(frame(content))
    await process.stdin.drain()
    length = await process.stdout.readexactly(LENGTH_BYTES)
    return await process.stdout.readexactly(int.from_bytes(length, "little"))
