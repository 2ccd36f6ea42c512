# SPDX-License-Identifier: Apache-2.0
"""Follows one row's output through its grammar: which ids may come next, and whether it is whole.

On the engine's thread: compiler.LIMITS bound each step, a budget of time bounds them all together. Does not know how a
grammar is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import thread_time

import numpy as np

from executor_service.grammar.compiler import fault, is_parser_limit
from executor_service.grammar.prototype import MAX_OWN_LEXERS, Place, Prototype
from executor_service.scheduling.sequence import UInt32Array
from protos.batch import Int32Array
from protos.errors import InvalidRequest, LimitReached

# Of processor time. Some ms for each id are usual where a grammar is spelled by characters and the vocabulary is large.
FREE_S = 0.5
MAX_MEAN_S = 0.025


class MatcherGrammar:
    """A row's stop ids end it where its output is whole, and are allowed nowhere else.

    What the row gets depends on no other row: a matcher that fails may have a lexer that others have filled, so the
    output is followed again by one of the row's own, and only what that one can't do is an error.

    place: where it has its own from the beginning.
    """

    def __init__(self, prototype: Prototype, stop_token_ids: frozenset[int], place: Place | None = None) -> None:
        self._prototype = prototype
        self._place = place
        self._generation = prototype.generation
        self._matcher = prototype.own_matcher() if place else prototype.shared_matcher()
        self._stop_token_ids = stop_token_ids
        self._is_text = prototype.tokenizer.is_text
        self._stops = _bits(stop_token_ids, len(self._is_text))  # [ceil(V / 32)]
        self._mask: UInt32Array | None = None
        self._output: list[int] = []
        # Processor time of the masks and of what was accepted.
        self._used_s = 0.0
        # Length of the output when it last got a matcher of its own.
        self._renewed_at: int | None = None

    def accept(self, token_id: int) -> bool:
        """False, and nothing changed, where the output does not allow it here. Raises LimitReached past a bound."""
        if token_id in self._stop_token_ids:
            return self._matcher.is_accepting()
        if not self._is_text[token_id]:
            return False
        with self._timed():
            if not self._consume(token_id):
                return False
            self._output.append(token_id)
            self._mask = None
        return True

    def begin(self, output: Int32Array) -> None:
        """output: int32 [n], what is known of it. Raises InvalidRequest where it does not fit, or nothing can follow.

        The first mask costs the most: it is made here, off the engine's thread.
        """
        for position, token_id in enumerate(output.tolist()):
            if self.is_complete or token_id in self._stop_token_ids or not self.accept(token_id):
                raise InvalidRequest(f"the known output's id {token_id} at position {position} breaks the constraint")
        if len(output) and self.is_complete:
            raise InvalidRequest(f"the known output of {len(output)} ids completes the constraint")
        self.mask()

    def mask(self) -> UInt32Array:
        """uint32 [ceil(V / 32)], read only. Raises LimitReached past a bound, InvalidRequest at a dead end."""
        if self._mask is None:
            with self._timed():
                self._mask = self._compute_mask()
        return self._mask

    @property
    def is_complete(self) -> bool:
        if self._matcher.is_stopped():
            return not self._matcher.is_error()
        return self._matcher.is_accepting() and not (self.mask() & ~self._stops).any()

    def _consume(self, token_id: int) -> bool:
        """A mask that is known spares the matcher the check before it takes the id."""
        if self._mask is None:
            if self._matcher.try_consume_tokens([token_id]):
                return True
            self._mask = self._compute_mask()
        if not self._mask[token_id // 32] >> token_id % 32 & 1:
            return False
        while not self._matcher.consume_token(token_id):
            self._renew()
        return True

    def _compute_mask(self) -> UInt32Array:
        while True:
            allowed = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)[: len(self._stops)]
            if not self._matcher.is_error():
                break
            self._renew()
        allowed = allowed & ~self._stops
        if unused := -len(self._is_text) % 32:  # llguidance's own end id may be among them
            allowed[-1] &= np.uint32(0xFFFFFFFF >> unused)
        return allowed | self._stops if self._matcher.is_accepting() else allowed

    def _renew(self) -> None:
        """After the matcher failed. Raises why, where one that no other row has touched fails here too."""
        if self._renewed_at == len(self._output) or is_parser_limit(self._matcher):
            raise fault(self._matcher, "constraint")
        self._renewed_at = len(self._output)
        if self._place is None:
            self._leave_shared()
        else:
            self._replay()

    def _leave_shared(self) -> None:
        """Others may have made it necessary: its time is not this row's."""
        self._prototype.retire(self._generation)
        self._place = self._prototype.own_lexers.place()
        if self._place is None:
            raise LimitReached(f"constraint: needs a lexer of its own, as {MAX_OWN_LEXERS} others do, the limit")
        start_s = thread_time()
        self._replay()
        self._used_s -= thread_time() - start_s

    def _replay(self) -> None:
        self._matcher = self._prototype.own_matcher()
        self._matcher.consume_tokens(self._output)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Raises LimitReached past what the row may use. Counted in the thread's own time: other load is not in it."""
        start_s = thread_time()
        yield
        self._used_s += thread_time() - start_s
        max_s = FREE_S + MAX_MEAN_S * len(self._output)
        if self._used_s > max_s:
            raise LimitReached(
                f"constraint: its masks took {self._used_s:.2f} s for {len(self._output)} ids, the limit is"
                f" {FREE_S:g} s and {MAX_MEAN_S * 1000:g} ms for each id"
            )


def _bits(token_ids: frozenset[int], vocabulary_size: int) -> UInt32Array:
    """uint32 [ceil(V / 32)]: bit i % 32 of word i // 32 is set for each id i of the vocabulary."""
    words = np.zeros(-(-vocabulary_size // 32), np.uint32)
    for token_id in token_ids:
        if 0 <= token_id < vocabulary_size:
            words[token_id // 32] |= np.uint32(1 << token_id % 32)
    return words
