# SPDX-License-Identifier: Apache-2.0
"""Decode steps as captured device graphs, one for each of a few numbers of rows; a step is padded to the next larger.

Rows of padding write to spare blocks and nobody reads their logits. Does not know sequences.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Sequence
from itertools import pairwise
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
MAX_PADDING = max(high - low - 1 for low, high in pairwise(SIZES))
_NUM_ARRAYS = 3
_NO_ROWS = [np.zeros(0, np.int32)] * _NUM_ARRAYS


def sizes_for(max_rows: int) -> list[int]:
    """The largest first: smaller graphs then live in its memory."""
    return sorted({min(size, max_rows) for size in SIZES}, reverse=True)


class DecodeGraphs:
    """depth: how many steps are on the device at once. Where a replay has numbers of its own on the host, each of that
    many graphs of one size takes its turn: what a running one reads is not changed."""

    def __init__(
        self, model: Any, ops: Backend, cache: KvCache, inputs: StepInputs, vocabulary_size: int, depth: int
    ) -> None:
        self.model = model
        self.ops = ops
        self.cache = cache
        self.inputs = inputs
        self.depth = depth if ops.graph_update((1,)) else 1
        self.graphs: dict[int, deque[Graph]] = {}
        self.max_rows = inputs.padding_slot
        # The arrays of a step, then places and ids of its new blocks: few, or the step is not run as a graph.
        self.buffer = torch.zeros(2 * _NUM_ARRAYS * self.max_rows, dtype=torch.int32, device=inputs.device)
        self.logits = torch.zeros(self.max_rows, vocabulary_size, dtype=torch.float32, device=inputs.device)

    def capture(self) -> None:
        """Of all sizes, or as many as the device has room for."""
        pool = new_graph_pool(self.inputs.device)
        for size in sizes_for(self.max_rows):
            try:
                upload(padded(_NO_ROWS, size, self.inputs.padding_slot), self.inputs.device, self.buffer)
                self._run(size)  # what is tried out or compiled at first use is done
                work = functools.partial(self._run, size)
                graphs = [Graph(self.inputs.device, pool, work) for _ in range(self.depth)]
            except RuntimeError as error:
                log.warning("no decode graph of %d rows, nor of fewer: %s", size, error)
                break
            self.graphs[size] = deque(graphs)
        log.info("decode graphs of %s rows", sorted(self.graphs))

    def size_for(self, step: Step) -> int | None:
        """None where no graph fits: larger ones may be all that the device had room for."""
        num_rows = len(step.rows)
        num_new = sum(len(new.block_ids) for row in step.rows for new in row.new_blocks)
        if 2 * num_new > _NUM_ARRAYS * self.max_rows:
            return None
        return min((size for size in self.graphs if 0 <= size - num_rows <= MAX_PADDING), default=None)

    def run(self, step: Step, size: int) -> Tensor:
        """float32 [B, V], good until the next step."""
        self.inputs.send(step, padded(decode_arrays(step.rows), size, self.inputs.padding_slot), out=self.buffer)
        lens = [row.context_len for row in step.rows]
        graph = self.graphs[size].popleft()
        graph.replay(self.ops.graph_update((*lens, *range(1, size - len(lens) + 1))))
        self.graphs[size].append(graph)
        return self.logits[: len(lens)]

    def _run(self, size: int) -> None:
        parts = self.buffer[: _NUM_ARRAYS * size].split(size)
        batch = self.inputs.decode_batch(parts, tuple(range(1, size + 1)))
        self.logits[:size].copy_(self.model.logits(self.model.forward(batch, self.cache)))


def padded(arrays: Sequence[Int32Array], size: int, slot: int) -> list[Int32Array]:
    """decode_arrays for size rows: those of padding have positions of their own, and so places of their own."""
    token_ids, positions, slots = arrays
    missing = size - len(token_ids)
    return [
        np.concatenate([token_ids, np.zeros(missing, np.int32)]),
        np.concatenate([positions, np.arange(missing, dtype=np.int32)]),
        np.concatenate([slots, np.full(missing, slot, np.int32)]),
    ]
