# SPDX-License-Identifier: Apache-2.0
"""The grammars of this executor's rows: each constraint is compiled once, in a worker, and copied for each row.

On the event loop, where nothing slow runs. Does not know streams or the engine.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from executor_service.grammar.compiler import GrammarTokenizer
from executor_service.grammar.frames import pack_pieces, unpack_answer
from executor_service.grammar.matcher_grammar import MatcherGrammar
from executor_service.grammar.process import MAX_COMPILE_BYTES, MAX_COMPILE_S, GrammarProcess
from executor_service.grammar.prototype import OwnLexers, Place, Prototype
from executor_service.scheduling.sequence import Grammar
from protos.batch import Int32Array
from protos.errors import InvalidRequest, LimitReached
from protos.packserve.v1 import sampling_pb2
from protos.vocabulary import Vocabulary

MAX_CACHED = 128
MAX_SLOW_THREADS = 2
# How often a row looks whether another one's lexer is gone.
_PLACE_S = 0.02

# Or why there is none.
_Compiled = Prototype | InvalidRequest | LimitReached


@dataclass
class _Compilation:
    task: asyncio.Task[_Compiled]
    num_waiting: int = 0


def _ignore(seconds: float) -> None:
    pass


class Grammars:
    """vocabulary_size: of the model's table, which may have more rows than the vocabulary has pieces.

    on_compiled: gets the seconds from a constraint that was not known yet to its grammar or its refusal.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        vocabulary_size: int,
        on_compiled: Callable[[float], object] = _ignore,
        max_compile_s: float = MAX_COMPILE_S,
        max_compile_bytes: int = MAX_COMPILE_BYTES,
    ) -> None:
        special = vocabulary.special_token_ids
        self._pieces = [b"" if i in special else piece for i, piece in enumerate(vocabulary.pieces)]
        self._vocabulary_size = vocabulary_size
        self._on_compiled = on_compiled
        self._bounds = (max_compile_s, max_compile_bytes)
        self._tokenizer: asyncio.Task[GrammarTokenizer] | None = None
        self._process: GrammarProcess | None = None
        self._cached: OrderedDict[bytes, _Compiled] = OrderedDict()
        self._compiling: dict[bytes, _Compilation] = {}
        self._tasks: set[asyncio.Task[_Compiled]] = set()
        self._own_lexers = OwnLexers()
        # Makes what is not shared, and leaves the other cores to the model.
        self._slow = ThreadPoolExecutor(MAX_SLOW_THREADS, "grammar")
        self.num_hits = 0
        self.num_failed = 0

    async def get(
        self, constraint: sampling_pb2.Constraint, stop_token_ids: frozenset[int], known_output: Int32Array
    ) -> Grammar:
        """A new row's grammar, after its known output: int32 [n].

        Raises InvalidRequest where the constraint has no meaning or the output does not fit it, LimitReached past a
        bound of its compilation.
        """
        compiled = await self._compiled(constraint.SerializeToString(deterministic=True))
        if not isinstance(compiled, Prototype):
            raise type(compiled)(str(compiled))
        if compiled.is_shared:
            return await asyncio.to_thread(_begun, compiled, stop_token_ids, known_output, None)
        async with compiled.turn:
            begun = partial(_begun, compiled, stop_token_ids, known_output, await self._place())
            return await asyncio.get_running_loop().run_in_executor(self._slow, begun)

    async def aclose(self) -> None:
        """Ends the worker. Whoever waits for a grammar is cancelled."""
        tasks = [*self._tasks, *([self._tokenizer] if self._tokenizer else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._slow.shutdown(wait=False, cancel_futures=True)
        if self._process:
            await self._process.kill()

    async def _place(self) -> Place:
        """Waits for one: rows that hold them end."""
        while True:
            if place := self._own_lexers.place():
                return place
            await asyncio.sleep(_PLACE_S)

    async def _compiled(self, key: bytes) -> _Compiled:
        """Rows with one constraint wait for one compilation, which goes on for as long as one of them does."""
        if key in self._cached:
            self.num_hits += 1
            self._cached.move_to_end(key)
            return self._cached[key]
        if key not in self._compiling:
            self._compiling[key] = self._start(key)
        compilation = self._compiling[key]
        compilation.num_waiting += 1
        try:
            return await asyncio.shield(compilation.task)
        finally:
            compilation.num_waiting -= 1
            if not compilation.num_waiting:
                compilation.task.cancel()
                if self._compiling.get(key) is compilation:
                    del self._compiling[key]

    def _start(self, key: bytes) -> _Compilation:
        task = asyncio.create_task(self._compile(key))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        return _Compilation(task)

    def _forget(self, task: asyncio.Task[_Compiled]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # nobody may be waiting for it any more

    async def _compile(self, key: bytes) -> _Compiled:
        """What the constraint itself is refused for is kept, what the machine's load may have to do with is not."""
        start_s = perf_counter()
        try:
            answer = await self._worker().compile(key)
            compiled = await self._prototype(key, answer)
        except Exception:
            self.num_failed += 1
            raise
        finally:
            self._on_compiled(perf_counter() - start_s)
        self.num_failed += not isinstance(compiled, Prototype)
        self._cached[key] = compiled
        if len(self._cached) > MAX_CACHED:
            self._cached.popitem(last=False)
        return compiled

    def _worker(self) -> GrammarProcess:
        if self._process is None:
            self._process = GrammarProcess(pack_pieces(self._pieces, self._vocabulary_size), *self._bounds)
        return self._process

    async def _prototype(self, key: bytes, answer: bytes) -> _Compiled:
        kind = sampling_pb2.Constraint.FromString(key).WhichOneof("kind")
        try:
            grammar = unpack_answer(answer)
            return await asyncio.to_thread(Prototype, await self._shared_tokenizer(), grammar, kind, self._own_lexers)
        except (InvalidRequest, LimitReached) as refusal:
            return refusal

    async def _shared_tokenizer(self) -> GrammarTokenizer:
        """Made once, when the first constraint comes: that takes a fraction of a second."""
        if self._tokenizer is None:
            make = asyncio.to_thread(GrammarTokenizer, self._pieces, self._vocabulary_size)
            self._tokenizer = asyncio.create_task(make)
        return await asyncio.shield(self._tokenizer)


def _begun(
    prototype: Prototype, stop_token_ids: frozenset[int], known_output: Int32Array, place: Place | None
) -> Grammar:
    grammar = MatcherGrammar(prototype, stop_token_ids, place)
    grammar.begin(known_output)
    return grammar
