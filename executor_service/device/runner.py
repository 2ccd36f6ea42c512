# SPDX-License-Identifier: Apache-2.0
"""Runs steps on one device: pack, model, sample. What a step sampled stays on the device and feeds the next one.

Knows tensors. Does not know which sequences exist or why a step looks as it does.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from executor_service.device.accelerator import make_current, peak_bytes
from executor_service.device.decode_graphs import DecodeGraphs, num_padding_rows
from executor_service.device.sampler import Sampler, failure_of
from executor_service.device.scoring import split_scores
from executor_service.device.step_inputs import StepInputs, is_decode
from executor_service.device.transfer import Download, upload
from executor_service.models.forward_batch import ForwardBatch, KvCache
from executor_service.scheduling.cache_group import CacheGroup
from executor_service.scheduling.sequence import RowKey, Sampling
from executor_service.scheduling.step import History, Limits, NewBlocks, Sampled, Scores, Step, StepRow
from kernels import Backend

# Prompt tokens are scored in slices, so that their logits are never in memory together.
_MAX_SCORED_ROWS = 64


class Model(Protocol):
    """From ids to logits, all on the device. What happens between is the model's own affair."""

    @property
    def cache_groups(self) -> tuple[CacheGroup, ...]: ...
    @property
    def vocabulary_size(self) -> int: ...

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


@dataclass(frozen=True)
class Capacity:
    """What a runner makes room for. depth: how many steps are on the device at once."""

    block_tokens: int
    max_sequences: int
    max_context_tokens: int
    depth: int = 1


class DeviceRunner:
    """has_graphs: decode steps are captured, where the operations allow it."""

    def __init__(
        self, model: Model, ops: Backend, capacity: Capacity, device: torch.device, has_graphs: bool = False
    ) -> None:
        self.model = model
        self.ops = ops
        self.capacity = capacity
        self.device = device
        self.num_blocks: tuple[int, ...] = ()
        self.cache: KvCache = []
        has_graphs = has_graphs and ops.can_graph
        max_blocks = -(-capacity.max_context_tokens // capacity.block_tokens)
        self.num_padding = num_padding_rows(capacity.max_sequences) if has_graphs else 0
        self.inputs = StepInputs(
            len(model.cache_groups),
            capacity.max_sequences,
            max_blocks,
            capacity.block_tokens,
            device,
            self.num_padding,
        )
        self._sampler = Sampler(ops, model.vocabulary_size, capacity.max_sequences, device)
        self._graphs: DecodeGraphs | None = None
        if has_graphs:
            self._graphs = DecodeGraphs(model, ops, self.inputs, model.vocabulary_size, capacity.depth)

    @property
    def num_state_bytes(self) -> int:
        """Of what sampling keeps."""
        return self._sampler.num_bytes

    def allocate(self, num_blocks: Sequence[int]) -> None:
        """A cache of so many blocks in each of the model's groups, in place of the one before. Raises RuntimeError
        where the memory does not hold them: there is none then."""
        self.release()
        size = self.capacity.block_tokens
        num_spare = -(-self.num_padding // size)
        self.cache = self.model.new_cache([count + num_spare for count in num_blocks], size, self.device)
        self.num_blocks = tuple(num_blocks)
        spare = torch.arange(self.num_padding, dtype=torch.int32) // size
        for count, table in zip(num_blocks, self.inputs.tables, strict=True):
            table[self.capacity.max_sequences :, 0] = (count + spare).to(self.device)

    def release(self) -> None:
        self.num_blocks, self.cache = (), []

    @torch.inference_mode()
    def forward(self, step: Step) -> Launched:
        """Puts the step on the device's queue and returns at once where the device runs apart from the host."""
        rows = [row for row in step.rows if row.sampling]
        scored_prompts = [row for row in step.rows if row.prompt_targets is not None]
        if self._graphs and is_decode(step) and (size := self._graphs.size_for(step)):
            return Launched(rows, self._graphs.run(step, size), scored_prompts, Download([], self.device))
        x = self.model.forward(self.inputs.pack(step), self.cache)  # [R + Q, ...]
        logits = self.model.logits(x[: len(rows)]) if rows else None  # [R, V]
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
        if launched.scored:
            [scored] = upload([np.array(launched.scored, np.int32)], self.device)
            raw = logits.index_select(0, scored)  # kept, for the sampler uses up the logits
        token_ids = self._sampler.sample(logits, launched.rows, limits)
        launched.token_ids = Download([token_ids], self.device)
        sampled = self.inputs.sampled[: len(token_ids)]
        torch.clamp(token_ids, min=0, out=sampled)  # what follows a failed row's id is nobody's, but has to be an id
        if launched.scored:
            num_top = max(samplings[r].logprobs or 0 for r in launched.scored)
            scores = self.ops.score(raw, sampled.index_select(0, scored), num_top)
            launched.scores = Download(scores, self.device)

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
        """On the thread that runs the steps from now on. What is tried out, compiled or allocated at first use is then
        done, and decode steps are captured."""
        make_current(self.device)
        limit = min(max_step_tokens, min(*self.num_blocks, self._max_blocks) * self.capacity.block_tokens)
        for num_tokens in (*(2**i for i in range(limit.bit_length()) if 2**i < limit), limit):
            self._try_out([self._trial_row(0, 0, num_tokens)])
        if self._graphs:
            self._graphs.capture(self.cache)

    def try_largest_step(self, max_step_tokens: int) -> int:
        """The bytes that a step as large as any, in tokens and in rows that sample, takes beside the cache, and those
        that captured ones keep; run on a cache that holds just that. Not for the CPU."""
        make_current(self.device)
        num_rows = min(self.capacity.max_sequences, max_step_tokens)
        size = self.capacity.block_tokens
        chunk_tokens = min(max_step_tokens - num_rows + 1, self._max_blocks * size)
        num_blocks = -(-chunk_tokens // size)
        self.allocate([num_blocks + -(-num_rows // size)] * len(self.inputs.tables))
        # The others share blocks: whose keys they read does not matter here.
        others = [self._trial_row(i, i % size, 1, num_blocks + i // size) for i in range(1, num_rows)]
        rows = [self._trial_row(0, 0, chunk_tokens), *others]
        num_bytes = peak_bytes(self.device, functools.partial(self._try_out, rows))
        if self._graphs:
            num_bytes += peak_bytes(self.device, functools.partial(self._graphs.try_out_largest, self.cache))
        self.release()
        return num_bytes

    @property
    def _max_blocks(self) -> int:
        """Of a row."""
        return self.inputs.tables.shape[2]

    def _try_out(self, rows: list[StepRow]) -> None:
        """On blocks that nobody has been given yet."""
        launched = self.forward(Step(0, rows))
        self.sample(launched, [Limits(banned=(0,)) for _ in launched.rows])
        self.sampled(launched)

    def _trial_row(self, slot: int, first: int, num_tokens: int, first_block: int = 0) -> StepRow:
        """Has some of everything."""
        token_ids = np.zeros(num_tokens, np.int32)
        num_blocks = -(-num_tokens // self.capacity.block_tokens)
        block_ids = list(range(first_block, first_block + num_blocks))
        return StepRow(
            RowKey(0, slot),
            first_position=first,
            num_tokens=num_tokens,
            token_ids=token_ids,
            sample_index=-1,
            slot=slot,
            new_blocks=tuple(NewBlocks(0, block_ids) for _ in self.num_blocks),
            sampling=Sampling(temperature=1.0, top_p=0.9, repetition_penalty=1.1, logprobs=1),
            output_position=0,
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
        [on_device] = upload([targets], self.device)
        slices = zip(x.split(_MAX_SCORED_ROWS), on_device.split(_MAX_SCORED_ROWS), strict=True)
        parts = [self.ops.score(self.model.logits(x), token_ids, num_top) for x, token_ids in slices]
        return [torch.cat(tensors) for tensors in zip(*parts, strict=True)]


def _prompt_scores(launched: Launched) -> list[Scores]:
    rows = launched.scored_prompts
    lens = [len(row.prompt_targets) for row in rows if row.prompt_targets is not None]
    return split_scores(launched.prompt_scores.wait(), lens, [row.num_prompt_top for row in rows])


def _num_top(row: StepRow) -> int:
    return row.sampling.logprobs or 0 if row.sampling else 0
