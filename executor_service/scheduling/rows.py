# SPDX-License-Identifier: Apache-2.0
"""All open sequences: which of them wait, which run and so hold blocks and a place, and how they move between the two.

Does not know why one is let in or gives way, or what a step brings.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count

from executor_service.scheduling.sequence import RowKey, Sequence
from executor_service.scheduling.sequence_cache import Hit, SequenceCache
from executor_service.scheduling.turn_order import TurnOrder


class Rows:
    """At most max_sequences run, each in one of as many slots, the lowest free."""

    def __init__(self, cache: SequenceCache, max_sequences: int) -> None:
        self.cache = cache
        self.max_sequences = max_sequences
        self.sequences: dict[RowKey, Sequence] = {}
        self.waiting = TurnOrder()
        self.running = TurnOrder()
        self.num_preemptions = 0
        self.num_prefix_query_tokens = 0
        self.num_prefix_hit_tokens = 0
        self._arrivals = count()
        self._free_slots = list(range(max_sequences))

    def add(self, sequence: Sequence) -> None:
        sequence.rank = (-sequence.priority, next(self._arrivals))
        self.sequences[sequence.key] = sequence
        self.waiting.add(sequence)

    @property
    def has_place(self) -> bool:
        """A row that ended keeps its slot until the device is done with it."""
        return bool(self._free_slots)

    def admit(self, sequence: Sequence, hit: Hit) -> None:
        """Asked before: there is a place, and blocks for all its known tokens."""
        self.waiting.remove(sequence)
        self.running.add(sequence)
        self.cache.open(sequence, hit)
        self.cache.take(sequence, self.cache.num_missing(sequence, hit.num_tokens))
        sequence.slot = heappop(self._free_slots)
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = min(hit.num_tokens, sequence.num_prompt_tokens)
            self.num_prefix_query_tokens += sequence.num_known
            self.num_prefix_hit_tokens += hit.num_tokens

    def preempt(self, sequence: Sequence) -> None:
        """No step in flight has it. It is computed again later, from what is then still cached."""
        self.num_preemptions += 1
        self.running.remove(sequence)
        self._give_back(sequence)
        sequence.num_computed = sequence.num_committed = 0
        sequence.is_overdue = False
        self.waiting.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        del self.sequences[sequence.key]
        (self.running if sequence.key in self.running else self.waiting).remove(sequence)
        sequence.is_ended = True
        self.settle(sequence)

    def settle(self, sequence: Sequence) -> None:
        """Of a row that ended: a step in flight still writes to its blocks, they wait for its commit."""
        if sequence.num_steps_in_flight == 0:
            self._give_back(sequence)

    def _give_back(self, sequence: Sequence) -> None:
        self.cache.release(sequence)
        if sequence.slot >= 0:
            heappush(self._free_slots, sequence.slot)
            sequence.slot = -1
            sequence.has_history = False
