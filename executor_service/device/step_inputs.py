# SPDX-License-Identifier: Apache-2.0
"""A Step becomes a ForwardBatch: flat arrays, built on the host by numpy and copied to the device at once.

What lasts longer than a step stays on the device: the block table of each row's slot, of which a step sends changed
entries only, and the ids that the last step sampled. No step here loops over ids. Does not know the model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from executor_service.device.transfer import upload
from executor_service.models.forward_batch import ForwardBatch
from executor_service.scheduling.step import Step, StepRow
from kernels.paged_rows import PagedRows
from protos.batch import Int32Array

_NO_PLACES = np.zeros(0, np.int32)


class StepInputs:
    """num_slots: of running rows; tables have num_padding more, for rows of padding. max_blocks: that one row has at
    most."""

    def __init__(
        self,
        num_groups: int,
        num_slots: int,
        max_blocks: int,
        block_tokens: int,
        device: torch.device,
        num_padding: int = 0,
    ) -> None:
        self.block_tokens = block_tokens
        self.device = device
        self.num_slots = num_slots
        self.tables = torch.zeros(num_groups, num_slots + num_padding, max_blocks, dtype=torch.int32, device=device)
        self.sampled = torch.zeros(num_slots, dtype=torch.int32, device=device)
        self._counting = torch.arange(num_slots + 1, dtype=torch.int32, device=device)

    def pack(self, step: Step) -> ForwardBatch:
        max_blocks = -(-max(row.context_len for row in step.rows) // self.block_tokens)
        if is_decode(step):
            parts = self.send(step, decode_arrays(step.rows))
            return self.decode_batch(parts, tuple(row.context_len for row in step.rows), max_blocks)
        return self._mixed_batch(step, max_blocks)

    def send(self, step: Step, arrays: Sequence[Int32Array], out: Tensor | None = None) -> list[Tensor]:
        """The arrays on the device, and the step's new blocks in the tables."""
        *parts, places, block_ids = upload([*arrays, *self._new_blocks(step.rows)], self.device, out)
        if len(places):
            self.tables.view(-1).index_copy_(0, places.long(), block_ids)
        return parts

    def decode_batch(
        self, parts: Sequence[Tensor], context_lens: tuple[int, ...], max_blocks: int | None = None
    ) -> ForwardBatch:
        """One token of each row. parts: decode_arrays() on the device. max_blocks: of a row; None for the tables' own
        width."""
        token_ids, positions, row_slots = parts
        num_rows = len(token_ids)
        counting = self._counting[:num_rows]
        offsets = tuple(range(num_rows + 1)), self._counting[: num_rows + 1]
        lens = context_lens, positions + 1
        groups = self._groups(positions, counting, row_slots, max_blocks, offsets, lens)
        return ForwardBatch(self._with_sampled(token_ids), positions, counting, groups, self.block_tokens)

    def _mixed_batch(self, step: Step, max_blocks: int) -> ForwardBatch:
        rows = step.rows
        offsets = np.zeros(len(rows) + 1, np.int32)
        np.cumsum([row.num_tokens for row in rows], out=offsets[1:])
        context_lens = np.array([row.context_len for row in rows], np.int32)
        arrays = [
            _token_ids(rows),
            _positions(rows, offsets),
            np.repeat(np.arange(len(rows), dtype=np.int32), np.diff(offsets)),
            np.array([row.slot for row in rows], np.int32),
            offsets,
            context_lens,
            _logit_rows(rows, offsets),
        ]
        token_ids, positions, row_of_token, row_slots, *lens, logit_rows = self.send(step, arrays)
        if any(row.token_ids is None for row in rows):
            token_ids = self._with_sampled(token_ids)
        bounds = tuple(offsets.tolist()), lens[0]
        contexts = tuple(context_lens.tolist()), lens[1]
        groups = self._groups(positions, row_of_token, row_slots, max_blocks, bounds, contexts)
        return ForwardBatch(token_ids, positions, logit_rows, groups, self.block_tokens)

    def _groups(
        self,
        positions: Tensor,
        row_of_token: Tensor,
        row_slots: Tensor,
        max_blocks: int | None,
        offsets: tuple[tuple[int, ...], Tensor],
        context_lens: tuple[tuple[int, ...], Tensor],
    ) -> tuple[PagedRows, ...]:
        """offsets, context_lens: on the host and on the device."""
        tables = self.tables[:, :, :max_blocks].index_select(1, row_slots)  # [G, B, M]
        places = row_of_token * tables.shape[2] + torch.div(positions, self.block_tokens, rounding_mode="floor")
        blocks = tables.flatten(1).index_select(1, places)  # [G, N]
        slots = blocks * self.block_tokens + positions % self.block_tokens
        return tuple(
            PagedRows(slots[g], tables[g], offsets[0], context_lens[0], offsets[1], context_lens[1])
            for g in range(len(tables))
        )

    def _with_sampled(self, token_ids: Tensor) -> Tensor:
        """Negative ones stand for an id of the last step: -1 for the first that it sampled."""
        return torch.where(token_ids < 0, self.sampled.index_select(0, (-1 - token_ids).clamp_(min=0)), token_ids)

    def _new_blocks(self, rows: list[StepRow]) -> tuple[Int32Array, Int32Array]:
        """Where in the tables, seen flat, blocks are new, and which."""
        num_rows, width = self.tables.shape[1:]
        places, block_ids = [_NO_PLACES], [_NO_PLACES]
        for row in rows:
            for g, new in enumerate(row.new_blocks):
                if new.block_ids:
                    first = (g * num_rows + row.slot) * width + new.first
                    places.append(np.arange(first, first + len(new.block_ids), dtype=np.int32))
                    block_ids.append(np.array(new.block_ids, np.int32))
        return np.concatenate(places), np.concatenate(block_ids)


def is_decode(step: Step) -> bool:
    """Every row computes one token and samples the next; no prompt is scored."""
    return all(row.num_tokens == 1 and row.sampling and row.prompt_targets is None for row in step.rows)


def decode_arrays(rows: list[StepRow]) -> list[Int32Array]:
    """token_ids, positions and slots, each [B]."""
    positions = np.array([row.first_position for row in rows], np.int32)
    return [_token_ids(rows), positions, np.array([row.slot for row in rows], np.int32)]


def _token_ids(rows: list[StepRow]) -> Int32Array:
    """[N]; what is not known yet is -1 - its index among the ids that the step before samples."""
    return np.concatenate(
        [np.array([-1 - row.sample_index], np.int32) if row.token_ids is None else row.token_ids for row in rows]
    )


def _positions(rows: list[StepRow], offsets: Int32Array) -> Int32Array:
    """[N]: 0, 1, 2, ... within each row, from its first position on."""
    starts = np.array([row.first_position for row in rows], np.int32) - offsets[:-1]
    return np.repeat(starts, np.diff(offsets)) + np.arange(offsets[-1], dtype=np.int32)


def _logit_rows(rows: list[StepRow], offsets: Int32Array) -> Int32Array:
    """[R + Q]: the last token of each row that samples, then the tokens that prompt_targets follow."""
    last = offsets[1:][[row.sampling is not None for row in rows]] - 1
    targets = zip(offsets.tolist(), (row.prompt_targets for row in rows), strict=False)
    scored = [np.arange(start, start + len(ids), dtype=np.int32) for start, ids in targets if ids is not None]
    return np.concatenate([last, *scored])
