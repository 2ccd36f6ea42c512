# SPDX-License-Identifier: Apache-2.0
"""Who takes part in one step, with how many tokens; who is let in for it, and who gives way.

Made anew for each step. Knows rows, blocks and budgets. Does not know what a step brings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, takewhile

from executor_service.scheduling.rows import Rows
from executor_service.scheduling.sequence import RowKey, Sequence
from executor_service.scheduling.sequence_cache import Hit
from executor_service.scheduling.turn_order import rank

# Of those that wait, so that a long queue does not lengthen a step.
MAX_LOOKED_AT = 32


@dataclass(frozen=True, slots=True)
class Computing:
    """A whole block of known tokens that a running row computes next."""

    index: int
    hash: bytes
    priority: int


class StepPlan:
    """Rows that got nothing in the step before come first, then decode rows, then prompts in turn.

    A prompt whose rest fits a quarter of the step may overtake longer ones of its priority; those that do take half of
    what decode rows leave at most. Where blocks run out, rows of lower rank give up theirs; one that a step in flight
    still writes for is left out of this step, so that the next can have them.
    """

    def __init__(self, rows: Rows, max_step_tokens: int, leaving: Iterable[RowKey] = ()) -> None:
        self.rows = rows
        self.max_step_tokens = max_step_tokens
        self.budget = max_step_tokens
        self.num_tokens: dict[RowKey, int] = {}
        self._is_open = True
        # They give up their blocks, now or as soon as nothing in flight writes to them.
        self._leaving = set(leaving)
        # Free blocks that are kept for a row which waits for such.
        self._promised = [0] * len(rows.cache.groups)
        self._computing: list[Computing] = []

    def fill(self) -> None:
        self._let_in_the_urgent()
        overdue = [row for row in self.rows.running if row.is_overdue]
        in_turn = [row for row in self.rows.running if not row.is_overdue]
        decoding = [row for row in in_turn if row.num_new_tokens == 1]
        for sequence in overdue:
            self._take(sequence, self.budget - (len(decoding) if sequence.num_new_tokens > 1 else 0))
        for sequence in decoding:
            self._take(sequence, self.budget)
        if self.budget:
            self._fill_with([row for row in in_turn if row.num_new_tokens > 1])

    def _fill_with(self, prompts: list[Sequence]) -> None:
        """Prompts that run and those that wait, in one line."""
        newcomers: list[Sequence] = []
        if self._is_open and len(self.rows.running) < self.rows.max_sequences:
            newcomers = list(islice(self.rows.waiting, MAX_LOOKED_AT))
            self._computing = list(self._blocks_computing()) if newcomers else []
        line = sorted([*prompts, *newcomers], key=rank)
        self._let_overtake(line)
        for sequence in line:
            if self.budget == 0:
                return
            self._serve(sequence, self.budget)

    def _let_overtake(self, line: list[Sequence]) -> None:
        allowance = self.budget // 2
        overtaken: Sequence | None = None
        for sequence in line:
            if self.budget == 0 or (overtaken and (allowance == 0 or sequence.priority < overtaken.priority)):
                return
            if self._is_passed_over(sequence):
                continue
            if self._is_long(sequence):
                overtaken = overtaken or sequence
            else:
                num_tokens = self._serve(sequence, min(self.budget, allowance) if overtaken else self.budget)
                allowance -= num_tokens if overtaken else 0

    def _is_long(self, sequence: Sequence) -> bool:
        """Nobody goes past one that waits and lacks room: it would never find any."""
        limit = self.max_step_tokens // 4
        if sequence.key in self.rows.running:
            return sequence.num_new_tokens > limit
        if not self._is_open or sequence.num_tokens <= limit:
            return False
        hit = self.rows.cache.find(sequence)
        is_long = sequence.num_tokens - hit.num_tokens > limit
        if is_long and not (self.rows.has_place and self._is_free(self._wanted(sequence, hit))):
            self._is_open = False
        return is_long

    def _serve(self, sequence: Sequence, max_tokens: int) -> int:
        """Part of the step for a row that runs, or can be let in now; how many tokens."""
        if sequence.key not in self.rows.running and not self._let_in(sequence):
            return 0
        return self._take(sequence, max_tokens)

    # ---- a place in the step

    def _take(self, sequence: Sequence, max_tokens: int) -> int:
        taken = self.num_tokens.get(sequence.key, 0)
        wanted = sequence.num_new_tokens - taken
        if wanted == 0 or sequence.key in self._leaving or sequence.is_complete:
            return 0
        num_tokens = min(wanted, max_tokens)
        if num_tokens <= 0:
            # A prompt is in turn again soon enough; a stream waits for one step at most.
            sequence.is_overdue = sequence.is_overdue or sequence.num_new_tokens == 1
            return 0
        end = sequence.num_computed + taken + num_tokens
        if end > sequence.num_reserved and not self._reserve(sequence, end):
            sequence.is_overdue = True
            self._is_open = False
            return 0
        sequence.is_overdue = False
        self.num_tokens[sequence.key] = taken + num_tokens
        self.budget -= num_tokens
        return num_tokens

    def _reserve(self, sequence: Sequence, num_tokens: int) -> bool:
        """Blocks for num_tokens tokens, if need be from rows of lower rank."""
        cache = self.rows.cache
        cache.leave_behind(sequence)
        missing = cache.num_missing(sequence, num_tokens)
        if not self._is_free(missing):
            lower = takewhile(lambda other: other is not sequence, reversed(self.rows.running))
            victims = cache.victims(self._lacking(missing), self._without_place(lower))
            if victims is None or not self._make_room(victims, missing):
                return False
        cache.take(sequence, missing)
        return True

    # ---- blocks

    def _is_free(self, wanted: list[int]) -> bool:
        return max(self._lacking(wanted)) <= 0

    def _lacking(self, wanted: list[int]) -> list[int]:
        free = self.rows.cache.num_free
        return [number - (f - kept) for number, f, kept in zip(wanted, free, self._promised, strict=True)]

    def _wanted(self, sequence: Sequence, hit: Hit) -> list[int]:
        return self.rows.cache.num_wanted(sequence, hit, self.max_step_tokens)

    def _without_place(self, rows: Iterable[Sequence]) -> Iterator[Sequence]:
        return (row for row in rows if row.key not in self.num_tokens and row.key not in self._leaving)

    def _make_room(self, victims: list[Sequence], wanted: list[int]) -> bool:
        """False where a step in flight still writes for one of them: then all give way to the next step."""
        self._leaving.update(victim.key for victim in victims)
        if any(victim.num_steps_in_flight for victim in victims):
            free = self.rows.cache.num_free
            self._promised = [p + min(w, f - p) for p, w, f in zip(self._promised, wanted, free, strict=True)]
            return False
        for victim in victims:
            self.rows.preempt(victim)
        return True

    # ---- newcomers

    def _let_in(self, sequence: Sequence) -> bool:
        """Where it has a place, and all its known tokens have blocks now."""
        if not self._is_open or sequence.key in self._leaving or self._is_passed_over(sequence):
            return False
        hit = self.rows.cache.find(sequence)
        self._is_open = self.rows.has_place and self._is_free(self._wanted(sequence, hit))
        if self._is_open:
            self._admit(sequence, hit)
        return self._is_open

    def _admit(self, sequence: Sequence, hit: Hit) -> None:
        self.rows.admit(sequence, hit)
        self._computing.extend(self._block_computing(sequence))

    def _let_in_the_urgent(self) -> None:
        """In place of running rows of lower priority, where that makes room."""
        waiting, running = self.rows.waiting, self.rows.running
        while waiting and running and waiting.first.priority > running.last.priority:
            if not self._displace_for(waiting.first):
                return

    def _displace_for(self, sequence: Sequence) -> bool:
        if any(row.is_overdue and row.rank < sequence.rank for row in self.rows.running):
            return False
        hit = self.rows.cache.find(sequence)
        wanted = self._wanted(sequence, hit)
        lacks_place = len(self.rows.running) >= self.rows.max_sequences
        if not lacks_place and self._is_free(wanted):
            return False  # it comes in by its turn
        lower = takewhile(lambda other: other.priority < sequence.priority, reversed(self.rows.running))
        victims = self.rows.cache.victims(self._lacking(wanted), self._without_place(lower), hit, int(lacks_place))
        if victims is None or not self._make_room(victims, wanted) or not self.rows.has_place:
            return False
        self._admit(sequence, hit)
        return True

    # ---- equal prefixes

    def _is_passed_over(self, sequence: Sequence) -> bool:
        """It waits for a block that a running row computes just now, and then shares it."""
        if not self._computing or sequence.key in self.rows.running:
            return False
        contents = self.rows.cache.contents(sequence, sequence.num_known // self.rows.cache.block_tokens)
        num_usable = sequence.max_hit_tokens // self.rows.cache.block_tokens
        return any(
            block.index < num_usable
            and block.priority >= sequence.priority
            and contents[block.index].hash == block.hash
            for block in self._computing
        )

    def _blocks_computing(self) -> Iterator[Computing]:
        for sequence in self.rows.running:
            yield from self._block_computing(sequence)

    def _block_computing(self, sequence: Sequence) -> Iterator[Computing]:
        index = sequence.num_committed // self.rows.cache.block_tokens
        if index < len(sequence.contents) and not self.rows.cache.is_cached(sequence.contents[index]):
            yield Computing(index, sequence.contents[index].hash, sequence.priority)
