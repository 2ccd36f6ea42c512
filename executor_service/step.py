# SPDX-License-Identifier: Apache-2.0
"""What one forward pass computes and what came of it, as plain values.

A Step can be sent to another process; it holds no tensor and no Sequence.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from executor_service.sequence import RowKey, Sampling
from protos.batch import Int32Array
from protos.errors import PackserveError


@dataclass(frozen=True, slots=True)
class StepRow:
    """Computes num_tokens tokens of a sequence from first_position on.

    token_ids: int32 [num_tokens], or None where the one id is what the step before sampled at sample_index: it is read
    on the device. sampling: None where the row ends inside the known tokens and yields no id.
    """

    key: RowKey
    first_position: int
    num_tokens: int
    token_ids: Int32Array | None
    sample_index: int
    block_ids: list[int]
    sampling: Sampling | None
    output_position: int

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
class Sampled:
    """One entry for each row that samples, in the step's order. A logprob means nothing where the row did not ask."""

    token_ids: list[int]
    logprobs: list[float]


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


@dataclass(frozen=True, slots=True)
class RowOutput:
    """News of one row: an id, its outcome, or both. position: of the id among the row's output."""

    key: RowKey
    token_id: int | None = None
    position: int = 0
    logprob: float | None = None
    start: RowStart | None = None
    outcome: Outcome | None = None
