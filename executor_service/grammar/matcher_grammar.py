# SPDX-License-Identifier: Apache-2.0
"""Follows one row's output through its grammar: which ids may come next, and whether it is whole.

On the engine's thread; each step is bounded by grammar_compiler.LIMITS. Does not know how a grammar is compiled.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llguidance import LLMatcher

from executor_service.grammar.compiler import GrammarTokenizer, fault
from executor_service.scheduling.sequence import UInt32Array
from protos.batch import Int32Array
from protos.errors import InvalidRequest


class MatcherGrammar:
    """matcher: this row's own. A row's stop ids end it where its output is whole, and are allowed nowhere else.

    on_fault: called once the matcher is of no more use.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        tokenizer: GrammarTokenizer,
        stop_token_ids: frozenset[int],
        on_fault: Callable[[], object],
    ) -> None:
        self._matcher = matcher
        self._on_fault = on_fault
        self._tokenizer = tokenizer
        self._stop_token_ids = stop_token_ids
        self._stops = _bits(stop_token_ids, tokenizer.vocabulary_size)  # [ceil(V / 32)]
        self._mask: UInt32Array | None = None

    def accept(self, token_id: int) -> bool:
        """False, and nothing changed, where the output does not allow it here. Raises LimitReached past a bound."""
        if token_id in self._stop_token_ids:
            return self._matcher.is_accepting()
        if not self._tokenizer.is_text[token_id] or not self._matcher.try_consume_tokens([token_id]):
            self._check()
            return False
        self._check()
        self._mask = None
        return True

    def begin(self, output: Int32Array) -> None:
        """output: int32 [n], what is known of it. Raises InvalidRequest where it does not fit, or nothing can follow.

        The first mask costs the most: it is made here, off the engine's thread.
        """
        for position, token_id in enumerate(output.tolist()):
            if self.is_complete or token_id in self._stop_token_ids or not self.accept(token_id):
                raise InvalidRequest(f"the known output's id {token_id} at position {position} breaks the constraint")
        if self.is_complete:
            raise InvalidRequest(f"the known output of {len(output)} ids completes the constraint")
        self.mask()

    def mask(self) -> UInt32Array:
        """uint32 [ceil(V / 32)], read only. Raises LimitReached past a bound, InvalidRequest at a dead end."""
        if self._mask is None:
            self._mask = self._compute_mask()
        return self._mask

    @property
    def is_complete(self) -> bool:
        if self._matcher.is_stopped():
            return not self._matcher.is_error()
        return self._matcher.is_accepting() and not (self.mask() & ~self._stops).any()

    def _compute_mask(self) -> UInt32Array:
        allowed = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)[: len(self._stops)]
        self._check()
        allowed = allowed & ~self._stops
        if unused := -self._tokenizer.vocabulary_size % 32:  # llguidance's own end id may be among them
            allowed[-1] &= np.uint32(0xFFFFFFFF >> unused)
        return allowed | self._stops if self._matcher.is_accepting() else allowed

    def _check(self) -> None:
        if self._matcher.is_error():
            self._on_fault()
            raise fault(self._matcher, "constraint")


def _bits(token_ids: frozenset[int], vocabulary_size: int) -> UInt32Array:
    """uint32 [ceil(V / 32)]: bit i % 32 of word i // 32 is set for each id i."""
    words = np.zeros(-(-vocabulary_size // 32), np.uint32)
    for token_id in token_ids:
        words[token_id // 32] |= np.uint32(1 << token_id % 32)
    return words
