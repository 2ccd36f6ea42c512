# SPDX-License-Identifier: Apache-2.0
"""What a sampled id, or the lack of one, means for its row: how it ends, and what is reported beside it.

Does not know blocks or other rows.
"""

from __future__ import annotations

import numpy as np

from executor_service.scheduling.sequence import Grammar, Sequence
from executor_service.scheduling.step import Finish, FinishReason, Outcome, PromptScores, RowStart, Scores
from executor_service.scheduling.step_rows import first_scored
from protos.errors import DeadlineExceeded, InvalidRequest, ModelFailure, PackserveError


def finish_of(sequence: Sequence, token_id: int) -> Outcome | None:
    """Of a row whose last known id this is; its grammar follows. None where it goes on."""
    if token_id in sequence.stop_token_ids:
        return Finish(FinishReason.STOP, token_id)
    if sequence.grammar and (outcome := _by_grammar(sequence, sequence.grammar, token_id)):
        return outcome
    if sequence.num_known_output >= sequence.max_output_tokens:
        return Finish(FinishReason.LENGTH)
    return None


def _by_grammar(sequence: Sequence, grammar: Grammar, token_id: int) -> Outcome | None:
    try:
        if not grammar.accept(token_id):
            position = sequence.num_known_output - 1
            return PackserveError(f"the constraint allowed id {token_id} at output position {position} and refused it")
        return Finish(FinishReason.STOP) if grammar.is_complete else None
    except PackserveError as error:
        return error


def are_finite(scores: Scores) -> bool:
    return bool(np.isfinite(scores.logprobs).all())


def not_finite(sequence: Sequence) -> ModelFailure:
    return ModelFailure(f"the model's logits for output position {sequence.num_known_output} are not finite")


def nothing_allowed(sequence: Sequence) -> InvalidRequest:
    """Names the fields that leave no id."""
    sampling = sequence.sampling
    in_force = {
        "allowed_token_ids": bool(sampling.allowed_token_ids),
        "bad_token_ids or bad_bytes": bool(sequence.banned),
        "min_tokens": sequence.num_known_output < sequence.min_output_tokens,
        "constraint": sequence.grammar is not None,
    }
    names = ", ".join(name for name, is_in_force in in_force.items() if is_in_force)
    return InvalidRequest(f"sampling: nothing is allowed at output position {sequence.num_known_output} by {names}")


def late(sequence: Sequence, now_s: float) -> DeadlineExceeded:
    waited_s = now_s - sequence.arrival_s
    return DeadlineExceeded(f"the deadline passed after {waited_s:.1f} s with {sequence.num_known_output} tokens out")


def take_start(sequence: Sequence) -> RowStart | None:
    """Once, beside the first id."""
    if sequence.is_started or sequence.first_step_s is None:
        return None
    sequence.is_started = True
    return RowStart(sequence.arrival_s, sequence.first_step_s - sequence.arrival_s, sequence.num_cached_tokens or 0)


def new_scores(sequence: Sequence, first_position: int, scores: Scores) -> PromptScores:
    """Those of a chunk from first_position on that were not reported before; they count as reported from now on."""
    first = first_scored(sequence, first_position)
    known = first - first_position - 1
    sequence.num_scored = first_position + 1 + len(scores.logprobs)
    return PromptScores(
        first, Scores(scores.logprobs[known:], scores.top_token_ids[known:], scores.top_logprobs[known:])
    )
