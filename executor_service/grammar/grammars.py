# SPDX-License-Identifier: Apache-2.0
"""The grammars of this executor's rows: each constraint is compiled once, in a worker, and copied for each row.

On the event loop, where nothing slow runs. Does not know streams or the engine.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from time import perf_counter

from llguidance import LLMatcher

from executor_service.grammar.compiler import GrammarTokenizer
from executor_service.grammar.frames import pack_pieces
from executor_service.grammar.matcher_grammar import MatcherGrammar
from executor_service.grammar.process import MAX_COMPILE_BYTES, MAX_COMPILE_S, GrammarProcess
from executor_service.scheduling.sequence import Grammar
from protos.batch import Int32Array
from protos.errors import InvalidRequest
from protos.packserve.v1 import sampling_pb2
from protos.vocabulary import Vocabulary

MAX_CACHED = 128

# A matcher that is only copied, or why there is none.
_Compiled = LLMatcher | str


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
        self._compiling: dict[bytes, asyncio.Task[_Compiled]] = {}
        self.num_hits = 0
        self.num_failed = 0

    async def get(
        self, constraint: sampling_pb2.Constraint, stop_token_ids: frozenset[int], known_output: Int32Array
    ) -> Grammar:
        """A new row's grammar, after its known output: int32 [n].

        Raises InvalidRequest where the constraint has no meaning or the output does not fit it, LimitReached past a
        bound of its compilation.
        """
        key = constraint.SerializeToString(deterministic=True)
        compiled = await self._compiled(key)
        if isinstance(compiled, str):
            raise InvalidRequest(compiled)
        # Copies share what they learn, and its bound: where that is reached, the next row begins with a new matcher.
        drop = partial(asyncio.get_running_loop().call_soon_threadsafe, self._cached.pop, key, None)
        grammar = MatcherGrammar(compiled.deep_copy(), await self._shared_tokenizer(), stop_token_ids, drop)
        await asyncio.to_thread(grammar.begin, known_output)
        return grammar

    async def aclose(self) -> None:
        """Ends the worker. Whoever waits for a grammar is cancelled."""
        tasks = [*self._compiling.values(), *([self._tokenizer] if self._tokenizer else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._process:
            await self._process.kill()

    async def _compiled(self, key: bytes) -> _Compiled:
        """Rows with one constraint wait for one compilation, which goes on when they are cancelled."""
        if key in self._cached:
            self.num_hits += 1
            self._cached.move_to_end(key)
            return self._cached[key]
        if key not in self._compiling:
            task = asyncio.create_task(self._compile(key))
            self._compiling[key] = task
            task.add_done_callback(partial(self._forget_task, key))
        return await asyncio.shield(self._compiling[key])

    def _forget_task(self, key: bytes, task: asyncio.Task[_Compiled]) -> None:
        del self._compiling[key]
        if not task.cancelled():
            task.exception()  # nobody may be waiting for it any more

    async def _compile(self, key: bytes) -> _Compiled:
        start_s = perf_counter()
        try:
            compiled: _Compiled = await self._matcher(key)
        except InvalidRequest as refusal:
            compiled = str(refusal)
            self.num_failed += 1
        except Exception:
            self.num_failed += 1
            raise
        finally:
            self._on_compiled(perf_counter() - start_s)
        self._cached[key] = compiled
        if len(self._cached) > MAX_CACHED:
            self._cached.popitem(last=False)
        return compiled

    async def _matcher(self, key: bytes) -> LLMatcher:
        if self._process is None:
            self._process = GrammarProcess(pack_pieces(self._pieces, self._vocabulary_size), *self._bounds)
        grammar = await self._process.compile(key)
        tokenizer = await self._shared_tokenizer()
        kind = sampling_pb2.Constraint.FromString(key).WhichOneof("kind")
        return await asyncio.to_thread(tokenizer.matcher, grammar, kind)

    async def _shared_tokenizer(self) -> GrammarTokenizer:
        """Made once, when the first constraint comes: that takes a fraction of a second."""
        if self._tokenizer is None:
            make = asyncio.to_thread(GrammarTokenizer, self._pieces, self._vocabulary_size)
            self._tokenizer = asyncio.create_task(make)
        return await asyncio.shield(self._tokenizer)
