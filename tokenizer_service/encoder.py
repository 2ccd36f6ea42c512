# SPDX-License-Identifier: Apache-2.0
"""Encodes off the event loop, and together what waits together.

One batch is encoded at a time, on a thread; calls that come meanwhile make up the next one. Nothing waits on a timer.
Callers do not feel each other: one may cancel, or bring a text that cannot be encoded.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from protos.batch import Int32Array
from protos.errors import LimitReached, Unavailable
from tokenizer_service.tokenizer import Tokenizer

DEFAULT_MAX_BATCH_TEXTS = 256
# Of all calls that are not answered yet.
MAX_WAITING_TEXTS = 65_536
MAX_WAITING_CHARS = 64 * 2**20

Rows = list[Int32Array]


@dataclass(frozen=True, eq=False)
class _Call:
    texts: Sequence[str]
    add_special_tokens: bool
    rows: asyncio.Future[Rows]

    @property
    def num_chars(self) -> int:
        return sum(map(len, self.texts))


class Encoder:
    """on_encode hears of every batch: seconds on the thread."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_batch_texts: int = DEFAULT_MAX_BATCH_TEXTS,
        on_encode: Callable[[float], None] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._max_batch_texts = max_batch_texts
        self._on_encode = on_encode
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="encoder")
        self._waiting: deque[_Call] = deque()
        self._num_texts = 0
        self._num_chars = 0
        self._worker: asyncio.Task[None] | None = None
        self._is_closed = False

    @property
    def num_waiting_chars(self) -> int:
        return self._num_chars

    async def encode(self, texts: Sequence[str], add_special_tokens: bool) -> Rows:
        """One row of ids for each text. Raises LimitReached where too much waits."""
        if self._is_closed:
            raise Unavailable("the encoder is closed")
        call = _Call(texts, add_special_tokens, asyncio.get_running_loop().create_future())
        with self._counted(call):
            self._waiting.append(call)
            if self._worker is None or self._worker.done():
                self._worker = asyncio.create_task(self._work())
            return await call.rows

    @contextmanager
    def _counted(self, call: _Call) -> Iterator[None]:
        """Among what waits, until it is answered or its caller goes away."""
        num_texts, num_chars = self._num_texts + len(call.texts), self._num_chars + call.num_chars
        if num_texts > MAX_WAITING_TEXTS:
            raise LimitReached(f"{num_texts} texts would wait to be encoded, at most {MAX_WAITING_TEXTS} do")
        if num_chars > MAX_WAITING_CHARS:
            raise LimitReached(f"{num_chars} characters would wait to be encoded, at most {MAX_WAITING_CHARS} do")
        self._num_texts, self._num_chars = num_texts, num_chars
        try:
            yield
        finally:
            self._num_texts -= len(call.texts)
            self._num_chars -= call.num_chars

    async def aclose(self) -> None:
        """Takes no more calls; those that wait are still answered."""
        self._is_closed = True
        if self._worker is not None:
            await asyncio.wait([self._worker])
        self._thread.shutdown()

    async def _work(self) -> None:
        while self._waiting:
            await self._answer(self._take_batch())

    def _take_batch(self) -> list[_Call]:
        """The first call, and those behind it that go with it; the others keep their order."""
        batch: list[_Call] = []
        left: deque[_Call] = deque()
        num_texts = 0
        for call in self._waiting:
            if call.rows.done():  # its caller went away
                continue
            fits = num_texts + len(call.texts) <= self._max_batch_texts
            if not batch or (fits and call.add_special_tokens == batch[0].add_special_tokens):
                batch.append(call)
                num_texts += len(call.texts)
            else:
                left.append(call)
        self._waiting = left
        return batch

    async def _answer(self, calls: list[_Call]) -> None:
        if not calls:
            return
        texts = [text for call in calls for text in call.texts]
        (outcome,) = await asyncio.gather(self._encode(texts, calls[0].add_special_tokens), return_exceptions=True)
        if not isinstance(outcome, BaseException):
            _hand_out(outcome, calls)
        elif len(calls) > 1:  # find whose text it was
            for call in calls:
                await self._answer([call])
        elif not calls[0].rows.done():
            calls[0].rows.set_exception(outcome)

    async def _encode(self, texts: list[str], add_special_tokens: bool) -> Rows:
        loop = asyncio.get_running_loop()
        rows, elapsed_s = await loop.run_in_executor(self._thread, self._timed_encode, texts, add_special_tokens)
        if self._on_encode is not None:
            self._on_encode(elapsed_s)
        return rows

    def _timed_encode(self, texts: list[str], add_special_tokens: bool) -> tuple[Rows, float]:
        start = time.perf_counter()
        rows = self._tokenizer.encode_batch(texts, add_special_tokens)
        return rows, time.perf_counter() - start


def _hand_out(rows: Rows, calls: list[_Call]) -> None:
    remaining = iter(rows)
    for call in calls:
        own = list(islice(remaining, len(call.texts)))
        if not call.rows.done():
            call.rows.set_result(own)
