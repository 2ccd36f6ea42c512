# SPDX-License-Identifier: Apache-2.0
"""What a step says of one sequence: a StepRow at its launch, the Limits of its next id when all ids before are known.

Changes nothing. Does not know other sequences.
"""

from __future__ import annotations

from executor_service.scheduling.sequence import Sequence
from executor_service.scheduling.step import History, Limits, NewBlocks, StepRow
from protos.batch import Int32Array


def step_row(sequence: Sequence, num_tokens: int) -> StepRow:
    first, end = sequence.num_computed, sequence.num_computed + num_tokens
    sampling = sequence.sampling if end == sequence.num_tokens else None
    targets = _prompt_targets(sequence, first, end)
    return StepRow(
        sequence.key,
        first,
        num_tokens,
        token_ids=None if end > sequence.num_known else sequence.token_ids[first:end],
        sample_index=sequence.sample_index,
        slot=sequence.slot,
        new_blocks=tuple(NewBlocks(held.num_named, held.block_ids[held.num_named :]) for held in sequence.blocks),
        sampling=sampling,
        output_position=sequence.num_output_tokens,
        history=_history(sequence) if sampling and sampling.has_state and not sequence.has_history else None,
        prompt_targets=targets,
        num_prompt_top=0 if targets is None else sequence.sampling.prompt_logprobs or 0,
    )


def _history(sequence: Sequence) -> History:
    return History(sequence.token_ids[: sequence.num_known], sequence.num_prompt_tokens)


def _prompt_targets(sequence: Sequence, first: int, end: int) -> Int32Array | None:
    """None where no prompt logprob is wanted that was not reported. Where a preempted row is computed again, the first
    ones may have been: first_scored says from where on they are news."""
    if sequence.sampling.prompt_logprobs is None:
        return None
    last = min(end, sequence.num_prompt_tokens - 1)
    return sequence.token_ids[first + 1 : last + 1] if last >= first_scored(sequence, first) else None


def first_scored(sequence: Sequence, first: int) -> int:
    """The first position in the prompt that a chunk from position first on scores and nobody was told of yet."""
    return max(sequence.num_scored, first + 1)


def limits_of(sequence: Sequence) -> Limits | None:
    """None where nothing applies."""
    banned: list[int] = []
    if sequence.num_known_output < sequence.min_output_tokens:
        banned += sequence.stop_token_ids
    if sequence.banned:
        output = sequence.known_output
        for one in sequence.banned:
            banned += one.next_token_ids(output)
    mask = sequence.grammar.mask() if sequence.grammar else None
    return Limits(tuple(banned), mask) if banned or mask is not None else None
