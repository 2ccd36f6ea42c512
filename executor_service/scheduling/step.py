# SPDX-License-Identifier: Apache-2.0
"""What one forward pass computes and what came of it, as plain values.

A Step can be sent to another process; it holds no tensor and no Sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from executor_service.scheduling.sequence import RowKey, Sampling, UInt32Array
from protos.batch import Int32Array
from protos.errors import PackserveError

Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class History:
    """All ids of a row before the one that is sampled: with what counts them the device begins."""

    token_ids: Int32Array
    num_prompt_tokens: int


class NewBlocks(NamedTuple):
    """Of one cache group: the row's blocks from its first-th on that no step before named."""

    first: int
    block_ids: list[int]


@dataclass(frozen=True, slots=True)
class StepRow:
    """Computes num_tokens tokens of a sequence from first_position on.

    token_ids: int32 [num_tokens], or None where the one id is what the step before sampled at sample_index: it is read
    on the device. slot: the row's own from the step that first has it until it ends or is preempted: there the device
    keeps its block table, and what its sampling needs from step to step. new_blocks: of each cache group; what the
    window has left behind stays in the table and means nothing. sampling: None where the row ends inside the known
    tokens and yields no id. history: where sampling.has_state, with the first step that samples in that slot.
    prompt_targets: int32 [<= num_tokens], the ids that follow the row's first tokens in the prompt, where the logprobs
    of these are wanted, num_prompt_top alternatives with each.
    """

    key: RowKey
    first_position: int
    num_tokens: int
    token_ids: Int32Array | None
    sample_index: int
    slot: int
    new_blocks: tuple[NewBlocks, ...]
    sampling: Sampling | None
    output_position: int
    history: History | None = None
    prompt_targets: Int32Array | None = None
    num_prompt_top: int = 0

    @property
    def context_len(self) -> int:
        return self.first_position + self.num_tokens


@dataclass(frozen=True, slots=True)
class Step:
    number: int
    rows: list[StepRow]

    @property
    def num_tokens(self) -> int:
        return sum(row.num_tokens for row in self.rows)


@dataclass(frozen=True, slots=True)
class Limits:
    """What a row may not choose now: it depends on the ids before, so it is made when they are known.

    mask: uint32 [ceil(V / 32)], bit set where an id is allowed; None allows all. banned: ids left out beside that.
    """

    banned: tuple[int, ...] = ()
    mask: UInt32Array | None = None


@dataclass(frozen=True, slots=True)
class Scores:
    """Natural logarithms of k ids' probabilities, and the n most likely ids in the place of each, likeliest first."""

    logprobs: Float32Array  # [k]
    top_token_ids: Int32Array  # [k, n]
    top_logprobs: Float32Array  # [k, n]


class Failure(Enum):
    """Why a row has no next id."""

    NOT_FINITE = "not finite"
    NOTHING_ALLOWED = "nothing allowed"


@dataclass(frozen=True, slots=True)
class Sampled:
    """token_ids, failures, scores: an entry for each row that samples, in the step's order; an id means nothing where
    there is a failure, scores are None where the row did not ask. prompt_scores: for each row with prompt_targets."""

    token_ids: list[int]
    failures: list[Failure | None]
    scores: list[Scores | None]
    prompt_scores: list[Scores]


class FinishReason(Enum):
    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Finish:
    reason: FinishReason
    stop_token_id: int | None = None


class Cancelled:
    """The outcome of a row whose caller or stream gave it up."""


CANCELLED = Cancelled()
Outcome = Finish | Cancelled | PackserveError


@dataclass(frozen=True, slots=True)
class RowStart:
    """Beside a row's first id."""

    arrival_s: float
    queued_s: float
    num_cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class PromptScores:
    """Of the prompt's ids from first_position on."""

    first_position: int
    scores: Scores


@dataclass(frozen=True, slots=True)
class RowOutput:
    """News of one row: an id, scores of its prompt, its outcome. position: of the id among the row's output."""

    key: RowKey
    token_id: int | None = None
    position: int = 0
    scores: Scores | None = None
    prompt: PromptScores | None = None
    start: RowStart | None = None
    outcome: Outcome | None = None
