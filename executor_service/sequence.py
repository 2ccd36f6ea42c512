# SPDX-License-Identifier: Apache-2.0
"""A request inside the executor: the tokens it knows, how many are computed, and when it ends.

Plain values, owned by the engine's thread. Does not know blocks' contents, tensors or the wire.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from protos.batch import Int32Array


class RowKey(NamedTuple):
    """A request id is unique in its stream only."""

    stream_id: int
    request_id: int


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a row's next id is chosen. logprobs: how many alternatives to report, or None for no logprobs at all."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    choice_index: int = 0
    logprobs: int | None = None

    @property
    def is_greedy(self) -> bool:
        # Below this, logits divided by the temperature leave float32's range or differ from greedy by rounding only.
        return self.temperature < 1e-5 or self.top_k == 1


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens are the prompt, then the output; some may be sampled on the device and not known here yet.

    # [0, num_computed)                 in the cache, or being written by a step in flight
    # [num_computed, num_tokens)        left to compute
    # [num_known, num_tokens)           sampled, but still on the device
    """

    key: RowKey
    token_ids: Int32Array  # [capacity]; the first num_known are valid
    num_known: int
    num_prompt_tokens: int
    max_output_tokens: int
    sampling: Sampling
    stop_token_ids: frozenset[int] = frozenset()
    arrival_s: float = 0.0
    deadline_s: float | None = None
    block_ids: list[int] = field(default_factory=list)
    num_computed: int = 0
    num_pending: int = 0
    num_steps_in_flight: int = 0
    # Index of its pending id among the ids that the last launched step samples.
    sample_index: int = -1
    first_step_s: float | None = None
    # It got no blocks when it was last its turn.
    is_short: bool = False
    is_started: bool = False
    is_ended: bool = False

    @property
    def num_tokens(self) -> int:
        return self.num_known + self.num_pending

    @property
    def num_new_tokens(self) -> int:
        return self.num_tokens - self.num_computed

    @property
    def num_output_tokens(self) -> int:
        """Known or pending."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def is_complete(self) -> bool:
        """No further id is wanted, whatever the pending ones turn out to be."""
        return self.num_output_tokens >= self.max_output_tokens

    def append(self, token_id: int) -> None:
        if self.num_known == len(self.token_ids):
            self.token_ids = np.concatenate([self.token_ids, np.empty_like(self.token_ids)])
        self.token_ids[self.num_known] = token_id
        self.num_known += 1
