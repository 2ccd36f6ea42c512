# SPDX-License-Identifier: Apache-2.0
"""A request inside the executor: the tokens it knows, how many are computed, and when it ends.

Plain values, owned by the engine's thread. Does not know blocks' contents, tensors or the wire.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from executor_service.scheduling.prefix_index import Content
from protos.batch import Int32Array
from protos.errors import PackserveError

UInt32Array = npt.NDArray[np.uint32]

# Up to here a caller means "the likeliest": float16 logits that are not equal differ by more.
GREEDY_TEMPERATURE = float(np.float32(1e-3))
# Below here top-p leaves the likeliest id only, whatever the law: it has at least 1 / V, and V is below 2**22.
GREEDY_TOP_P = 2.0**-22


class RowKey(NamedTuple):
    """A request id is unique in its stream only."""

    stream_id: int
    request_id: int


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a row's next id is chosen: what stays the same from its first to its last.

    logprobs, prompt_logprobs: how many alternatives to report, or None for no logprobs at all.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    # Empty allows all.
    allowed_token_ids: tuple[int, ...] = ()
    # Never chosen.
    banned_token_ids: tuple[int, ...] = ()
    seed: int = 0
    choice_index: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None

    @property
    def is_greedy(self) -> bool:
        return self.temperature <= GREEDY_TEMPERATURE or self.top_k == 1 or self.top_p < GREEDY_TOP_P

    @property
    def has_penalties(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)

    @property
    def has_state(self) -> bool:
        """The device keeps something of the row from one step to the next: counts, or a bias for each id."""
        return self.has_penalties or self.has_bias

    @property
    def has_bias(self) -> bool:
        return bool(self.logit_bias or self.allowed_token_ids or self.banned_token_ids)


class Grammar(Protocol):
    """Follows a row's output. Its ids are in [0, V); a mask is uint32 [ceil(V / 32)], bit set where the id is allowed.

    Ids that end a row are allowed where the output may end.
    """

    def accept(self, token_id: int) -> bool:
        """False where the output does not allow it here."""

    def mask(self) -> UInt32Array:
        """May raise PackserveError, as accept and is_complete may: then the row cannot go on."""

    @property
    def is_complete(self) -> bool:
        """Nothing but an end can follow."""


class Banned(Protocol):
    """Something that the output may not contain."""

    @property
    def always(self) -> tuple[int, ...]:
        """Ids that complete it whatever comes before."""

    def next_token_ids(self, output: Int32Array) -> Iterable[int]:
        """Beside those, the ones that would complete it now."""


@dataclass(slots=True)
class HeldBlocks:
    """A row's blocks of one cache group, from its start on; the first num_left are left behind by the window and mean
    nothing. Steps have named the first num_named."""

    block_ids: list[int] = field(default_factory=list)
    num_left: int = 0
    num_named: int = 0

    @property
    def own(self) -> list[int]:
        return self.block_ids[self.num_left :]


@dataclass(slots=True, eq=False)
class Sequence:
    """Tokens are the prompt, then the output; some may be sampled on the device and not known here yet.

    # [0, num_committed)                in the cache
    # [num_committed, num_computed)     being written by steps in flight
    # [num_computed, num_tokens)        left to compute
    # [num_known, num_tokens)           sampled, but still on the device
    """

    key: RowKey
    token_ids: Int32Array  # [capacity]; the first num_known are valid
    num_known: int
    num_prompt_tokens: int
    max_output_tokens: int
    sampling: Sampling
    min_output_tokens: int = 0
    stop_token_ids: frozenset[int] = frozenset()
    grammar: Grammar | None = None
    # Why the grammar cannot say what is allowed next.
    fault: PackserveError | None = None
    banned: tuple[Banned, ...] = ()
    priority: int = 0
    cache_salt: bytes = b""
    arrival_s: float = 0.0
    deadline_s: float | None = None
    num_computed: int = 0
    num_committed: int = 0
    num_pending: int = 0
    num_steps_in_flight: int = 0
    # Index of its pending id among the ids that the last launched step samples.
    sample_index: int = -1
    # Where the device keeps what it needs of the row from step to step; -1 while it waits.
    slot: int = -1
    # Prompt logprobs of positions below this one are reported, or need not be.
    num_scored: int = 1
    # Who goes first, least first: higher priority, then earlier arrival.
    rank: tuple[int, int] = (0, 0)
    # It wanted a part of the last step and got none: it is first in the next.
    is_overdue: bool = False
    # One for each cache group while it runs.
    blocks: tuple[HeldBlocks, ...] = ()
    # Tokens that the blocks have room for, in every group.
    num_reserved: int = 0
    # Of the first whole blocks, as many as were asked for so far.
    contents: list[Content] = field(default_factory=list)
    # Tokens of the prompt that were cached when it first ran.
    num_cached_tokens: int | None = None
    # The device has counted what stands before its next id, in slot.
    has_history: bool = False
    first_step_s: float | None = None
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
    def num_known_output(self) -> int:
        return self.num_known - self.num_prompt_tokens

    @property
    def max_hit_tokens(self) -> int:
        """How many cached tokens it can use: the last known one gives its next id, and prompt logprobs not reported
        yet need logits of the positions before theirs."""
        if self.sampling.prompt_logprobs is not None and self.num_scored < self.num_prompt_tokens:
            return min(self.num_known, self.num_scored) - 1
        return self.num_known - 1

    @property
    def known_output(self) -> Int32Array:
        return self.token_ids[self.num_prompt_tokens : self.num_known]

    @property
    def is_complete(self) -> bool:
        """No further id is wanted, whatever the pending ones turn out to be."""
        return self.num_output_tokens >= self.max_output_tokens

    def append(self, token_id: int) -> None:
        if self.num_known == len(self.token_ids):
            self.token_ids = np.concatenate([self.token_ids, np.empty_like(self.token_ids)])
        self.token_ids[self.num_known] = token_id
        self.num_known += 1
