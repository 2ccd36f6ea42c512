# SPDX-License-Identifier: Apache-2.0
"""A compiled constraint, and the matchers that rows get of it: copies that share a lexer, or one of a row's own.

A lexer learns states until it is full, so one that is shared may be full by what other rows did. Does not know rows.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from threading import Lock
from time import thread_time
from weakref import WeakSet

from llguidance import LLMatcher

from executor_service.grammar.compiler import GrammarTokenizer

# A lexer takes at most MAX_LEXER_STATES of some 2 kB: 32 MB for each, 2 GB in all.
MAX_OWN_LEXERS = 64
# A row whose shared lexer is full makes another on the engine's thread. What takes longer to make is never shared.
MAX_SHARED_S = 0.06
# A lexer that is full after fewer rows is not shared again.
MIN_SHARES = 256


class Place:
    """What a row holds for as long as it has a lexer of its own."""


class OwnLexers:
    """From any thread."""

    def __init__(self) -> None:
        self._places: WeakSet[Place] = WeakSet()
        self._lock = Lock()

    def place(self) -> Place | None:
        """None where all are taken."""
        with self._lock:
            if len(self._places) >= MAX_OWN_LEXERS:
                return None
            place = Place()
            self._places.add(place)
            return place


class Prototype:
    """From any thread, but for `turn`."""

    def __init__(self, tokenizer: GrammarTokenizer, grammar: str, kind: str | None, own_lexers: OwnLexers) -> None:
        """Raises as GrammarTokenizer.matcher."""
        self.tokenizer = tokenizer
        self.own_lexers = own_lexers
        self._grammar = grammar
        self._kind = kind
        start_s = thread_time()
        first = tokenizer.matcher(grammar, kind)
        self.is_shared = thread_time() - start_s <= MAX_SHARED_S
        self._shared = first if self.is_shared else None
        self._unused = [] if self.is_shared else [first]
        # Where each makes its own, the rows of one constraint do so one by one, so that others come in between.
        self.turn = asyncio.Lock()
        self._num_shares = 0
        # Of the shared lexer: it counts those that were full.
        self.generation = 0

    def shared_matcher(self) -> LLMatcher:
        """A copy, before its first token."""
        shared = self._shared = self._shared or self.own_matcher()
        self._num_shares += 1
        return shared.deep_copy()

    def own_matcher(self) -> LLMatcher:
        """Before its first token. Takes as long as the first one did."""
        with suppress(IndexError):
            return self._unused.pop()
        return self.tokenizer.matcher(self._grammar, self._kind)

    def retire(self, generation: int) -> None:
        """The shared lexer of that generation is full: later rows get a new one, or one each."""
        if generation == self.generation:
            self.generation += 1
            self.is_shared = self._num_shares >= MIN_SHARES
            self._num_shares = 0
            self._shared = None
