# SPDX-License-Identifier: Apache-2.0
"""Which sequences run next, and with how many tokens; what a finished step means for them.

Knows rows and steps. Does not know tensors, text or the wire.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf
from time import monotonic

from executor_service.scheduling.outcomes import (
    are_finite,
    finish_of,
    late,
    new_scores,
    not_finite,
    nothing_allowed,
    take_start,
)
from executor_service.scheduling.rows import Rows
from executor_service.scheduling.sequence import RowKey, Sequence
from executor_service.scheduling.sequence_cache import SequenceCache
from executor_service.scheduling.step import (
    CANCELLED,
    Failure,
    Limits,
    Outcome,
    RowOutput,
    Sampled,
    Scores,
    Step,
    StepRow,
)
from executor_service.scheduling.step_plan import StepPlan
from executor_service.scheduling.step_rows import limits_of, step_row
from protos.errors import PackserveError


@dataclass(frozen=True, slots=True)
class Flight:
    """A step that is launched and not committed; sequences in the order of its rows."""

    step: Step
    sequences: list[Sequence]


class Scheduler:
    """Continuous batching, owned by one thread. Steps are committed in the order of their launch."""

    def __init__(self, cache: SequenceCache, max_step_tokens: int, max_sequences: int) -> None:
        self.cache = cache
        self.max_step_tokens = max_step_tokens
        self.rows = Rows(cache, max_sequences)
        self.sequences = self.rows.sequences
        self.waiting = self.rows.waiting
        self.running = self.rows.running
        self.num_steps = 0
        self.num_failed_rows = 0
        self._in_flight: deque[Flight] = deque()
        self._leaving: set[RowKey] = set()
        # No open row has an earlier one.
        self._next_deadline_s = inf

    @property
    def has_work(self) -> bool:
        return bool(self.sequences or self._in_flight)

    # ---- figures, over all cache groups

    @property
    def num_preemptions(self) -> int:
        return self.rows.num_preemptions

    @property
    def num_prefix_query_tokens(self) -> int:
        return self.rows.num_prefix_query_tokens

    @property
    def num_prefix_hit_tokens(self) -> int:
        return self.rows.num_prefix_hit_tokens

    @property
    def num_blocks(self) -> int:
        return sum(group.pool.num_blocks for group in self.cache.groups)

    @property
    def num_free_blocks(self) -> int:
        """Cached ones that nobody holds are free."""
        return sum(self.cache.num_free)

    @property
    def num_used_blocks(self) -> int:
        return self.num_blocks - self.num_free_blocks

    @property
    def usage(self) -> float:
        """Of the group that is fullest, 0 to 1."""
        return max(group.pool.num_used / group.pool.num_blocks for group in self.cache.groups)

    # ---- requests come and go

    def add(self, sequence: Sequence) -> None:
        self.rows.add(sequence)
        if sequence.deadline_s is not None:
            self._next_deadline_s = min(self._next_deadline_s, sequence.deadline_s)

    def end(self, key: RowKey, outcome: Outcome) -> list[RowOutput]:
        """Nothing where the row has ended already."""
        sequence = self.sequences.get(key)
        return [self._end(sequence, outcome)] if sequence else []

    def cancel_stream(self, stream_id: int) -> None:
        """Its reader is gone: there is nobody to report to."""
        for key in [key for key in self.sequences if key.stream_id == stream_id]:
            self.end(key, CANCELLED)

    def expire(self, now_s: float) -> list[RowOutput]:
        if now_s < self._next_deadline_s:
            return []
        expired = [s for s in self.sequences.values() if s.deadline_s is not None and now_s >= s.deadline_s]
        outputs = [self._end(sequence, late(sequence, now_s)) for sequence in expired]
        deadlines = (s.deadline_s for s in self.sequences.values() if s.deadline_s is not None)
        self._next_deadline_s = min(deadlines, default=inf)
        return outputs

    def fail_all(self, outcome: Outcome) -> list[RowOutput]:
        """Every open row ends so; steps in flight are given up."""
        for flight in self._in_flight:
            for sequence in flight.sequences:
                sequence.num_steps_in_flight = 0
                if sequence.is_ended:
                    self.rows.settle(sequence)
        self._in_flight.clear()
        return [self._end(sequence, outcome) for sequence in list(self.sequences.values())]

    def give_up(self, key: RowKey) -> None:
        """A running row gives its blocks up as soon as no step in flight writes to them, and waits for its turn."""
        self._leaving.add(key)

    def _end(self, sequence: Sequence, outcome: Outcome) -> RowOutput:
        self.rows.remove(sequence)
        return RowOutput(sequence.key, outcome=outcome)

    # ---- what runs next

    def schedule(self) -> Step | None:
        """None where nothing can run before a step in flight is committed."""
        self._let_go()
        plan = StepPlan(self.rows, self.max_step_tokens, self._leaving)
        plan.fill()
        return self._launch(plan.num_tokens) if plan.num_tokens else None

    def _let_go(self) -> None:
        for key in list(self._leaving):
            if key not in self.running:
                self._leaving.remove(key)
            elif self.sequences[key].num_steps_in_flight == 0:
                self._leaving.remove(key)
                self.rows.preempt(self.sequences[key])

    def _launch(self, num_tokens: dict[RowKey, int]) -> Step:
        self.num_steps += 1
        now_s = monotonic()
        sequences = [self.sequences[key] for key in num_tokens]
        rows = []
        num_samples = 0
        for sequence in sequences:
            row = step_row(sequence, num_tokens[sequence.key])
            rows.append(row)
            for held in sequence.blocks:
                held.num_named = len(held.block_ids)
            sequence.num_computed += row.num_tokens
            sequence.num_steps_in_flight += 1
            if sequence.first_step_s is None:
                sequence.first_step_s = now_s
            if row.sampling:
                sequence.num_pending += 1
                sequence.has_history = True
                sequence.sample_index = num_samples
                num_samples += 1
        step = Step(self.num_steps, rows)
        self._in_flight.append(Flight(step, sequences))
        return step

    def limits(self, step: Step) -> list[Limits | None]:
        """Of each row that samples; the step is the oldest in flight, so that every id before its own is known."""
        flight = self._in_flight[0]
        assert flight.step is step, "steps are sampled in the order of their launch"
        return [
            self._limits(sequence) for row, sequence in zip(step.rows, flight.sequences, strict=True) if row.sampling
        ]

    def _limits(self, sequence: Sequence) -> Limits | None:
        if sequence.is_ended:
            return None
        try:
            return limits_of(sequence)
        except PackserveError as error:
            sequence.fault = error  # the row ends when its step is committed
            return None

    # ---- what a step brought

    def commit(self, step: Step, sampled: Sampled) -> list[RowOutput]:
        """The oldest step in flight is done: its ids join their sequences."""
        flight = self._in_flight.popleft()
        assert flight.step is step, "steps are committed in the order of their launch"
        samples = zip(sampled.token_ids, sampled.failures, sampled.scores, strict=True)
        prompts = iter(sampled.prompt_scores)
        outputs = []
        for row, sequence in zip(step.rows, flight.sequences, strict=True):
            sequence.num_steps_in_flight -= 1
            sample = next(samples) if row.sampling else None
            prompt = next(prompts) if row.prompt_targets is not None else None
            if sequence.is_ended:
                self.rows.settle(sequence)
            elif output := self._commit_row(row, sequence, sample, prompt):
                outputs.append(output)
        return outputs

    def _commit_row(
        self,
        row: StepRow,
        sequence: Sequence,
        sample: tuple[int, Failure | None, Scores | None] | None,
        prompt_scores: Scores | None,
    ) -> RowOutput | None:
        if sample and sequence.fault:
            return self._end(sequence, sequence.fault)
        if sample and sample[1]:
            return self._fail(sequence, sample[1])
        if prompt_scores and not are_finite(prompt_scores):
            return self._fail(sequence, Failure.NOT_FINITE)
        self.cache.commit(sequence, row.context_len)
        prompt = new_scores(sequence, row.first_position, prompt_scores) if prompt_scores else None
        if not sample:
            return RowOutput(sequence.key, prompt=prompt) if prompt else None
        token_id, _, scores = sample
        sequence.num_pending -= 1
        sequence.append(token_id)
        outcome = finish_of(sequence, token_id)
        if outcome:
            self.rows.remove(sequence)
        return RowOutput(
            sequence.key,
            token_id,
            position=sequence.num_known_output - 1,
            scores=scores,
            prompt=prompt,
            start=take_start(sequence),
            outcome=outcome,
        )

    def _fail(self, sequence: Sequence, failure: Failure) -> RowOutput:
        if failure is Failure.NOTHING_ALLOWED:
            return self._end(sequence, nothing_allowed(sequence))
        self.num_failed_rows += 1
        # Whatever went wrong may be in its blocks already.
        self.cache.forget(sequence)
        return self._end(sequence, not_finite(sequence))
