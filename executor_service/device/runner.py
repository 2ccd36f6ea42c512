# SPDX-License-Identifier: Apache-2.0
"""Runs steps on one device: pack, model, sample. What a step sampled stays on the device and feeds the next one.

Knows tensors. Does not know which sequences exist or why a step looks as it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from executor_service.device.packing import pack
from executor_service.device.sampler import Sampler, failure_of
from executor_service.device.scoring import score, split_scores
from executor_service.device.transfer import Download, upload
from executor_service.models.forward_batch import ForwardBatch, KvCache
from executor_service.scheduling.cache_group import CacheGroup
from executor_service.scheduling.sequence import RowKey, Sampling
from executor_service.scheduling.step import History, Limits, Sampled, Scores, Step, StepRow

# Prompt tokens are scored in slices, so that their logits are never in memory together.
_MAX_SCORED_ROWS = 64


class Model(Protocol):
    """From ids to logits, all on the device. What happens between is the model's own affair."""

    @property
    def cache_groups(self) -> tuple[CacheGroup, ...]: ...

    def forward(self, batch: ForwardBatch, cache: KvCache) -> Tensor:
        """x [R + Q, ...] of batch.logit_rows, for logits; K and V of every token are written to the cache."""

    def logits(self, x: Tensor) -> Tensor:
        """float32 [rows, V], the caller's own."""

    def new_cache(self, num_blocks: Sequence[int], block_tokens: int, device: torch.device) -> KvCache:
        """num_blocks: of each cache group."""


@dataclass(slots=True)
class Launched:
    """A step on the device. rows: those that sample; logits: of these, until they have; scores: of those that ask."""

    rows: list[StepRow]
    logits: Tensor | None
    scored_prompts: list[StepRow]
    prompt_scores: Download
    scored: list[int] = field(default_factory=list)
    scores: Download | None = None
    token_ids: Download | None = None


class DeviceRunner:
    def __init__(self, model: Model, num_blocks: Sequence[int], block_tokens: int, device: torch.device) -> None:
        """num_blocks: of each of the model's cache groups."""
        self.model = model
        self.device = device
        self.block_tokens = block_tokens
        self.num_blocks = tuple(num_blocks)
        self.cache = model.new_cache(self.num_blocks, block_tokens, device)
        self._sampler = Sampler(device)
        self._sampled: Tensor | None = None

    @torch.inference_mode()
    def forward(self, step: Step) -> Launched:
        """Puts the step on the device's queue and returns at once where the device runs apart from the host."""
        batch = pack(step, self.block_tokens, self.device, self._sampled)
        x = self.model.forward(batch, self.cache)  # [R + Q, ...]
        rows = [row for row in step.rows if row.sampling]
        logits = self.model.logits(x[: len(rows)]) if rows else None  # [R, V]
        scored_prompts = [row for row in step.rows if row.prompt_targets is not None]
        prompt_scores = self._score_prompts(x[len(rows) :], scored_prompts)
        return Launched(rows, logits, scored_prompts, Download(prompt_scores, self.device))

    @torch.inference_mode()
    def sample(self, launched: Launched, limits: list[Limits | None]) -> None:
        """limits: of each row that samples. The ids stay on the device: the next forward reads them there."""
        logits, launched.logits = launched.logits, None
        if logits is None:
            return
        samplings = [row.sampling for row in launched.rows if row.sampling]
        launched.scored = [r for r, sampling in enumerate(samplings) if sampling.logprobs is not None]
        index = upload(launched.scored, np.int64, self.device)
        raw = logits[index]  # kept, for the sampler uses up the logits
        token_ids = self._sampler.sample(logits, launched.rows, limits)
        launched.token_ids = Download([token_ids], self.device)
        self._sampled = token_ids.clamp(min=0)  # what follows a failed row's id is nobody's, but has to be an id
        if launched.scored:
            num_top = max(samplings[r].logprobs or 0 for r in launched.scored)
            launched.scores = Download(score(raw, self._sampled[index].long(), num_top), self.device)

    def sampled(self, launched: Launched) -> Sampled:
        """Waits for the step's ids and scores to reach the host."""
        token_ids: list[int] = launched.token_ids.wait()[0].tolist() if launched.token_ids else []
        scores: list[Scores | None] = [None] * len(token_ids)
        if launched.scores:
            num_tops = [_num_top(launched.rows[r]) for r in launched.scored]
            found = split_scores(launched.scores.wait(), [1] * len(num_tops), num_tops)
            for r, row_scores in zip(launched.scored, found, strict=True):
                scores[r] = row_scores
        return Sampled(token_ids, [failure_of(i) for i in token_ids], scores, _prompt_scores(launched))

    def warm_up(self, max_step_tokens: int) -> None:
        """Steps of growing size, on blocks that nobody has been given yet: what is tried out or allocated at first use
        is then done."""
        limit = min(max_step_tokens, min(self.num_blocks) * self.block_tokens)
        sizes = [2**i for i in range(limit.bit_length()) if 2**i < limit]
        for num_tokens in (*sizes, limit):
            launched = self.forward(Step(0, [self._warm_up_row(num_tokens)]))
            self.sample(launched, [Limits(banned=(0,))])
            self.sampled(launched)

    def _warm_up_row(self, num_tokens: int) -> StepRow:
        """Has some of everything."""
        token_ids = np.zeros(num_tokens, np.int32)
        return StepRow(
            RowKey(0, 0),
            first_position=0,
            num_tokens=num_tokens,
            token_ids=token_ids,
            sample_index=-1,
            block_ids=tuple(list(range(-(-num_tokens // self.block_tokens))) for _ in self.num_blocks),
            sampling=Sampling(temperature=1.0, top_p=0.9, repetition_penalty=1.1, logprobs=1),
            output_position=0,
            state_slot=0,
            history=History(token_ids, num_prompt_tokens=num_tokens),
            prompt_targets=token_ids[:_MAX_SCORED_ROWS],
            num_prompt_top=1,
        )

    def _score_prompts(self, x: Tensor, rows: list[StepRow]) -> list[Tensor]:
        """Of the Q tokens whose successors are known, from x [Q, ...]: what score gives, or nothing where Q is 0."""
        if not len(x):
            return []
        targets = np.concatenate([row.prompt_targets for row in rows if row.prompt_targets is not None])
        num_top = max(row.num_prompt_top for row in rows)
        slices = zip(
            x.split(_MAX_SCORED_ROWS), upload(targets, np.int64, self.device).split(_MAX_SCORED_ROWS), strict=True
        )
        parts = [score(self.model.logits(x), token_ids, num_top) for x, token_ids in slices]
        return [torch.cat(tensors) for tensors in zip(*parts, strict=True)]


def _prompt_scores(launched: Launched) -> list[Scores]:
    rows = launched.scored_prompts
    lens = [len(row.prompt_targets) for row in rows if row.prompt_targets is not None]
    return split_scores(launched.prompt_scores.wait(), lens, [row.num_prompt_top for row in rows])


def _num_top(row: StepRow) -> int:
    return row.sampling.logprobs or 0 if row.sampling else 0
