# SPDX-License-Identifier: Apache-2.0
"""Which sequences run next, and with how many tokens; what a finished step means for them.

Knows blocks and budgets. Does not know tensors, text or the wire.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from time import monotonic

from executor_service.blocks import BlockPool
from executor_service.sequence import RowKey, Sequence
from executor_service.step import CANCELLED, Finish, FinishReason, Outcome, RowOutput, RowStart, Sampled, Step, StepRow
from protos.errors import DeadlineExceeded

# Row key -> how many of its tokens the step computes, in the order of the step's rows.
Plan = dict[RowKey, int]


class Scheduler:
    """Continuous batching, first come first served. Owned by one thread.

    A step takes decode rows first, then prompts in the order of arrival, max_step_tokens tokens at most. Where blocks
    run out, the youngest running sequence gives up its own and is computed again later; a row that still got none is
    the first in the next step, and nobody is let in meanwhile.
    """

    def __init__(self, pool: BlockPool, max_step_tokens: int, max_sequences: int) -> None:
        self.pool = pool
        self.max_step_tokens = max_step_tokens
        self.max_sequences = max_sequences
        self.sequences: dict[RowKey, Sequence] = {}
        self.waiting: OrderedDict[RowKey, Sequence] = OrderedDict()
        self.running: dict[RowKey, Sequence] = {}
        self.num_preemptions = 0
        self.num_steps = 0
        self._in_flight: deque[tuple[Step, list[Sequence]]] = deque()

    @property
    def has_work(self) -> bool:
        return bool(self.sequences or self._in_flight)

    # ---- requests come and go

    def add(self, sequence: Sequence) -> None:
        self.sequences[sequence.key] = sequence
        self.waiting[sequence.key] = sequence

    def end(self, key: RowKey, outcome: Outcome) -> list[RowOutput]:
        """Nothing where the row has ended already."""
        sequence = self.sequences.get(key)
        return [self._end(sequence, outcome)] if sequence else []

    def cancel_stream(self, stream_id: int) -> None:
        """Its reader is gone: there is nobody to report to."""
        for key in [key for key in self.sequences if key.stream_id == stream_id]:
            self.end(key, CANCELLED)

    def expire(self, now_s: float) -> list[RowOutput]:
        late = [s for s in self.sequences.values() if s.deadline_s is not None and now_s >= s.deadline_s]
        return [self._end(s, DeadlineExceeded(_describe_late(s, now_s))) for s in late]

    def fail_all(self, outcome: Outcome) -> list[RowOutput]:
        """Every open row ends so; steps in flight are given up."""
        self._in_flight.clear()
        for sequence in self.sequences.values():
            sequence.num_steps_in_flight = 0
        return [self._end(sequence, outcome) for sequence in list(self.sequences.values())]

    def _end(self, sequence: Sequence, outcome: Outcome) -> RowOutput:
        self._remove(sequence)
        return RowOutput(sequence.key, outcome=outcome)

    def _remove(self, sequence: Sequence) -> None:
        del self.sequences[sequence.key]
        if self.running.pop(sequence.key, None) is None:
            del self.waiting[sequence.key]
        sequence.is_ended = True
        self._release_if_idle(sequence)

    def _release_if_idle(self, sequence: Sequence) -> None:
        # A step in flight still writes to the blocks: they wait for its commit.
        if sequence.num_steps_in_flight == 0:
            self.pool.release(sequence.block_ids)
            sequence.block_ids = []

    # ---- what runs next

    def schedule(self) -> Step | None:
        """None where nothing can run before a step in flight is committed."""
        plan: Plan = {}
        budget = self.max_step_tokens
        for sequence in sorted(self.running.values(), key=_turn):
            budget -= self._plan(sequence, budget, plan)
        # While one that runs is short of blocks, no newcomer takes any.
        while budget and not any(s.is_short for s in self.running.values()) and (admitted := self._admit()):
            budget -= self._plan(admitted, budget, plan)
        return self._launch(plan) if plan else None

    def _admit(self) -> Sequence | None:
        """The first that waits, where all its known tokens have room now."""
        if not self.waiting or len(self.running) >= self.max_sequences:
            return None
        first = next(iter(self.waiting.values()))
        if self.pool.blocks_for(first.num_tokens) > self.pool.num_free:
            return None
        del self.waiting[first.key]
        self.running[first.key] = first
        return first

    def _plan(self, sequence: Sequence, budget: int, plan: Plan) -> int:
        """Adds the sequence with as many tokens as the budget allows and blocks can be had for; returns how many."""
        num_tokens = min(sequence.num_new_tokens, budget)
        is_preempted = sequence.key not in self.running
        if is_preempted or sequence.is_complete or num_tokens == 0:
            return 0
        sequence.is_short = not self._reserve(sequence, sequence.num_computed + num_tokens, plan)
        if sequence.is_short:
            return 0
        plan[sequence.key] = num_tokens
        return num_tokens

    def _reserve(self, sequence: Sequence, num_tokens: int, plan: Plan) -> bool:
        """Blocks for num_tokens tokens, if need be from younger sequences."""
        missing = self.pool.blocks_for(num_tokens) - len(sequence.block_ids)
        if missing <= 0:
            return True
        while (block_ids := self.pool.allocate(missing)) is None:
            victim = self._youngest_after(sequence, plan)
            if victim is None:
                return False
            self._preempt(victim)
        sequence.block_ids.extend(block_ids)
        return True

    def _youngest_after(self, sequence: Sequence, plan: Plan) -> Sequence | None:
        """The youngest, younger than the sequence, that neither this step nor one in flight writes for."""
        for candidate in reversed(self.running.values()):
            if candidate is sequence:
                return None
            if candidate.num_steps_in_flight == 0 and candidate.key not in plan:
                return candidate
        return None

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        self.pool.release(sequence.block_ids)
        sequence.block_ids = []
        sequence.num_computed = 0
        sequence.is_short = False
        del self.running[sequence.key]
        self.waiting[sequence.key] = sequence
        self.waiting.move_to_end(sequence.key, last=False)

    def _launch(self, plan: Plan) -> Step:
        self.num_steps += 1
        now_s = monotonic()
        sequences = [self.running[key] for key in plan]
        rows = []
        num_samples = 0
        for sequence in sequences:
            row = _step_row(sequence, plan[sequence.key])
            rows.append(row)
            sequence.num_computed += row.num_tokens
            sequence.num_steps_in_flight += 1
            if sequence.first_step_s is None:
                sequence.first_step_s = now_s
            if row.sampling:
                sequence.num_pending += 1
                sequence.sample_index = num_samples
                num_samples += 1
        step = Step(self.num_steps, rows)
        self._in_flight.append((step, sequences))
        return step

    # ---- what a step brought

    def commit(self, step: Step, sampled: Sampled) -> list[RowOutput]:
        """The oldest step in flight is done: its ids join their sequences."""
        launched, sequences = self._in_flight.popleft()
        assert launched is step, "steps are committed in the order of their launch"
        samples = iter(zip(sampled.token_ids, sampled.logprobs, strict=True))
        outputs = []
        for row, sequence in zip(step.rows, sequences, strict=True):
            sequence.num_steps_in_flight -= 1
            sample = next(samples) if row.sampling else None
            if sequence.is_ended:
                self._release_if_idle(sequence)
            elif sample:
                outputs.append(self._accept(sequence, *sample))
        return outputs

    def _accept(self, sequence: Sequence, token_id: int, logprob: float) -> RowOutput:
        sequence.num_pending -= 1
        sequence.append(token_id)
        finish = _finish(sequence, token_id)
        if finish:
            self._remove(sequence)
        return RowOutput(
            sequence.key,
            token_id,
            position=sequence.num_known - sequence.num_prompt_tokens - 1,
            logprob=None if sequence.sampling.logprobs is None else logprob,
            start=_take_start(sequence),
            outcome=finish,
        )


def _turn(sequence: Sequence) -> tuple[bool, bool]:
    """Who got no blocks in the last step, then decode rows, then prompts; each in the order of arrival."""
    return not sequence.is_short, sequence.num_new_tokens > 1


def _step_row(sequence: Sequence, num_tokens: int) -> StepRow:
    first, end = sequence.num_computed, sequence.num_computed + num_tokens
    return StepRow(
        sequence.key,
        first,
        num_tokens,
        token_ids=None if end > sequence.num_known else sequence.token_ids[first:end],
        sample_index=sequence.sample_index,
        block_ids=sequence.block_ids.copy(),
        sampling=sequence.sampling if end == sequence.num_tokens else None,
        output_position=sequence.num_output_tokens,
    )


def _finish(sequence: Sequence, token_id: int) -> Finish | None:
    if token_id in sequence.stop_token_ids:
        return Finish(FinishReason.STOP, token_id)
    if sequence.num_known - sequence.num_prompt_tokens >= sequence.max_output_tokens:
        return Finish(FinishReason.LENGTH)
    return None


def _take_start(sequence: Sequence) -> RowStart | None:
    """Once, beside the first id."""
    if sequence.is_started or sequence.first_step_s is None:
        return None
    sequence.is_started = True
    return RowStart(sequence.arrival_s, sequence.first_step_s - sequence.arrival_s)


def _describe_late(sequence: Sequence, now_s: float) -> str:
    waited_s = now_s - sequence.arrival_s
    return (
        f"the deadline passed after {waited_s:.1f} s with {sequence.num_known - sequence.num_prompt_tokens} tokens out"
    )
