# SPDX-License-Identifier: Apache-2.0
"""Runs steps on one device: pack, model, sample. What a step sampled stays on the device and feeds the next one.

Knows tensors. Does not know which sequences exist or why a step looks as it does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from executor_service.forward_batch import ForwardBatch, KvCache
from executor_service.packing import pack
from executor_service.sampler import logprobs_of, sample
from executor_service.sequence import RowKey, Sampling
from executor_service.step import Sampled, Step, StepRow


class Model(Protocol):
    """From ids to logits, all on the device. What happens between is the model's own affair."""

    def forward(self, batch: ForwardBatch, cache: KvCache) -> torch.Tensor:
        """float32 logits [R, V] of batch.logit_rows; K and V of every token are written to the cache."""

    def new_cache(self, num_blocks: int, block_tokens: int, device: torch.device) -> KvCache: ...


@dataclass(frozen=True, slots=True)
class Launched:
    """A step's samples, on the device. logprobs only where a row asked."""

    token_ids: torch.Tensor  # int32 [R]
    logprobs: torch.Tensor | None  # float32 [R]


class DeviceRunner:
    def __init__(self, model: Model, num_blocks: int, block_tokens: int, device: torch.device) -> None:
        self.model = model
        self.device = device
        self.block_tokens = block_tokens
        self.cache = model.new_cache(num_blocks, block_tokens, device)
        self._sampled: torch.Tensor | None = None

    @torch.inference_mode()
    def forward(self, step: Step) -> Launched:
        """Puts the step on the device's queue and returns at once where the device runs apart from the host."""
        batch = pack(step, self.block_tokens, self.device, self._sampled)
        logits = self.model.forward(batch, self.cache)
        wanted = [row for row in step.rows if row.sampling]
        samplings = [row.sampling for row in wanted if row.sampling]
        token_ids = sample(logits, samplings, [row.output_position for row in wanted])
        self._sampled = token_ids
        wants_logprobs = any(sampling.logprobs is not None for sampling in samplings)
        return Launched(token_ids, logprobs_of(logits, token_ids) if wants_logprobs else None)

    def sampled(self, launched: Launched) -> Sampled:
        """Waits for the step's ids to reach the host."""
        token_ids = launched.token_ids.tolist()
        return Sampled(token_ids, [0.0] * len(token_ids) if launched.logprobs is None else launched.logprobs.tolist())

    def warm_up(self, max_step_tokens: int) -> None:
        """Steps of growing size, on blocks that nobody has been given yet: what is tried out or allocated at first use
        is then done."""
        num_blocks = self.cache[0][0].shape[0]
        limit = min(max_step_tokens, num_blocks * self.block_tokens)
        sizes = [2**i for i in range(limit.bit_length()) if 2**i < limit]
        for num_tokens in (*sizes, limit):
            self.sampled(self.forward(Step(0, [self._warm_up_row(num_tokens)])))

    def _warm_up_row(self, num_tokens: int) -> StepRow:
        return StepRow(
            RowKey(0, 0),
            first_position=0,
            num_tokens=num_tokens,
            token_ids=np.zeros(num_tokens, np.int32),
            sample_index=-1,
            block_ids=list(range(-(-num_tokens // self.block_tokens))),
            sampling=Sampling(temperature=1.0, top_p=0.9, logprobs=0),
            output_position=0,
        )
