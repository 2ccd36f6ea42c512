# SPDX-License-Identifier: Apache-2.0
"""Decode steps as captured device graphs, one for each of a few numbers of rows; a step is padded to the next larger.

Rows of padding write to spare blocks and nobody reads their logits. Does not know sequences.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from executor_service.device.accelerator import Graph, new_graph_pool
from executor_service.device.step_inputs import StepInputs, decode_arrays
from executor_service.device.transfer import upload
from executor_service.models.forward_batch import KvCache
from executor_service.scheduling.step import Step
from kernels import Backend
from protos.batch import Int32Array

log = logging.getLogger(__name__)

SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256)
_NUM_ARRAYS = 3
_NO_ROWS = [np.zeros(0, np.int32)] * _NUM_ARRAYS


def sizes_for(max_rows: int) -> list[int]:
    """The largest first: smaller graphs then live in its memory."""
    return sorted({min(size, max_rows) for size in SIZES}, reverse=True)


class DecodeGraphs:
    """depth: how many steps are on the device at once. Where a replay has numbers of its own on the host, each of that
    many graphs of one size takes its turn: what a running one reads is not changed."""

    def __init__(self, model: Any, ops: Backend, inputs: StepInputs, vocabulary_size: int, depth: int) -> None:
        self.model = model
        self.ops = ops
        self.inputs = inputs
        self.depth = depth if ops.graph_update((1,)) else 1
        self.graphs: dict[int, deque[Graph]] = {}
        self.max_rows = inputs.num_slots
        # The arrays of a step, then places and ids of its new blocks: few, or the step is not run as a graph.
        self.buffer = torch.zeros(2 * _NUM_ARRAYS * self.max_rows, dtype=torch.int32, device=inputs.device)
        self.logits = torch.zeros(self.max_rows, vocabulary_size, dtype=torch.float32, device=inputs.device)

    @torch.inference_mode()
    def capture(self, cache: KvCache) -> None:
        """Of all sizes, or as many as the device has room for."""
        pool = new_graph_pool(self.inputs.device)
        for size in sizes_for(self.max_rows):
            self._try_out(cache, size)  # what is compiled or allocated at first use is done
            work = functools.partial(self._run, cache, size)
            try:
                graphs = [Graph(self.inputs.device, pool, work) for _ in range(self.depth)]
            except RuntimeError as error:
                log.warning("no decode graph of %d rows, nor of fewer: %s", size, error)
                break
            self.graphs[size] = deque(graphs)
        log.info("decode graphs of %s rows", sorted(self.graphs))

    @torch.inference_mode()
    def try_out_largest(self, cache: KvCache) -> None:
        self._try_out(cache, sizes_for(self.max_rows)[0])

    def _try_out(self, cache: KvCache, size: int) -> None:
        """The step that is captured, run as it is, with rows of padding alone."""
        upload(padded(_NO_ROWS, size, self.inputs), self.inputs.device, self.buffer)
        self._run(cache, size)

    def size_for(self, step: Step) -> int | None:
        """None where no graph is large enough."""
        num_new = sum(len(new.block_ids) for row in step.rows for new in row.new_blocks)
        if 2 * num_new > _NUM_ARRAYS * self.max_rows:
            return None
        return min((size for size in self.graphs if size >= len(step.rows)), default=None)

    def run(self, step: Step, size: int) -> Tensor:
        """float32 [B, V], good until the next step."""
        self.inputs.send(step, padded(decode_arrays(step.rows), size, self.inputs), out=self.buffer)
        lens = [row.context_len for row in step.rows]
        graph = self.graphs[size].popleft()
        graph.replay(self.ops.graph_update((*lens, *self._padding_lens(size - len(lens)))))
        self.graphs[size].append(graph)
        return self.logits[: len(lens)]

    def _padding_lens(self, count: int) -> tuple[int, ...]:
        return tuple(i % self.inputs.block_tokens + 1 for i in range(count))

    def _run(self, cache: KvCache, size: int) -> None:
        parts = self.buffer[: _NUM_ARRAYS * size].split(size)
        batch = self.inputs.decode_batch(parts, self._padding_lens(size))
        self.logits[:size].copy_(self.model.logits(self.model.forward(batch, cache)))


def padded(arrays: Sequence[Int32Array], size: int, inputs: StepInputs) -> list[Int32Array]:
    """decode_arrays for size rows. Those of padding fill their spare blocks one place after the other: no two write to
    one place, and none is past a first block."""
    padding = np.arange(size - len(arrays[0]), dtype=np.int32)
    rows = [np.zeros_like(padding), padding % inputs.block_tokens, inputs.num_slots + padding]
    return [np.concatenate(pair) for pair in zip(arrays, rows, strict=True)]


def num_padding_rows(max_rows: int) -> int:
    """Of the largest step that is captured, which is tried out with padding alone."""
    return sizes_for(max_rows)[0]
