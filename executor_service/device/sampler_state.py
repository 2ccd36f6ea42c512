# SPDX-License-Identifier: Apache-2.0
"""What sampling keeps on the device from step to step, by slot: counts of ids, and a bias for each.

Filled when a row first samples in a slot; ids that are sampled afterwards are counted where they are. Does not know
which rows exist.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from executor_service.device.transfer import upload
from executor_service.scheduling.sequence import Sampling
from executor_service.scheduling.step import StepRow
from protos.batch import Int32Array


class SamplerState:
    """counts: int32 [slots, V], of the output. seen: bool [slots, V], in prompt or output. bias: float32 [slots, V],
    -inf for ids that are never chosen. They grow by doubling."""

    def __init__(self, vocabulary_size: int, device: torch.device) -> None:
        self.device = device
        shape = (0, vocabulary_size)
        self.counts = torch.zeros(shape, dtype=torch.int32, device=device)
        self.seen = torch.zeros(shape, dtype=torch.bool, device=device)
        self.bias = torch.zeros(shape, dtype=torch.float32, device=device)

    def begin(self, rows: Sequence[StepRow]) -> None:
        """For rows that bring their history: what a slot's last owner left gives way to it."""
        rows = [row for row in rows if row.history is not None]
        if rows:
            self._reserve(1 + max(row.state_slot for row in rows))
            index = upload([row.state_slot for row in rows], np.int64, self.device)
            for tensor in (self.counts, self.seen, self.bias):
                tensor[index] = 0
            self._count_history([row for row in rows if row.sampling and row.sampling.has_penalties])
            self._set_bias(rows)

    def count(self, slots: Tensor, token_ids: Tensor) -> None:
        """Ids that were just sampled, one for each of these slots (int64)."""
        self.counts[slots, token_ids] += 1
        self.seen[slots, token_ids] = True

    def adjusted(self, logits: Tensor, slots: Tensor, samplings: Sequence[Sampling]) -> Tensor:
        """[R, V], from logits [R, V]: penalties, then the bias. What no row has costs nothing; a row that has none of
        what another has keeps its bits: 1 divides and multiplies, 0 is added and taken off."""
        if any(s.repetition_penalty != 1 for s in samplings):
            penalties = self._column([s.repetition_penalty for s in samplings])
            logits = torch.where(self.seen[slots], _repeated(logits, penalties), logits)
        if any(s.frequency_penalty or s.presence_penalty for s in samplings):
            counts = self.counts[slots]
            logits = logits - self._column([s.frequency_penalty for s in samplings]) * counts
            logits -= self._column([s.presence_penalty for s in samplings]) * (counts > 0)
        if any(s.has_bias for s in samplings):
            logits = logits + self.bias[slots]
        return logits

    def _column(self, values: Sequence[float]) -> Tensor:
        return upload(values, np.float32, self.device)[:, None]

    def _reserve(self, num_slots: int) -> None:
        have = len(self.counts)
        if num_slots > have:
            num_more = max(num_slots, 2 * have) - have
            self.counts, self.seen, self.bias = (
                torch.cat([tensor, tensor.new_zeros(num_more, tensor.shape[1])])
                for tensor in (self.counts, self.seen, self.bias)
            )

    def _count_history(self, rows: Sequence[StepRow]) -> None:
        histories = [(row.state_slot, row.history) for row in rows if row.history is not None]
        known = [(slot, history.token_ids) for slot, history in histories]
        output = [(slot, history.token_ids[history.num_prompt_tokens :]) for slot, history in histories]
        if histories:
            self.seen[self._pairs(known)] = True
            pairs = self._pairs(output)
            self.counts.index_put_(pairs, torch.ones_like(pairs[0], dtype=torch.int32), accumulate=True)

    def _set_bias(self, rows: Sequence[StepRow]) -> None:
        settings = [(row.state_slot, row.sampling) for row in rows if row.sampling]
        if closed := [(slot, sampling.allowed_token_ids) for slot, sampling in settings if sampling.allowed_token_ids]:
            self.bias[upload([slot for slot, _ in closed], np.int64, self.device)] = -torch.inf
            self.bias[self._pairs(closed)] = 0
        if banned := [(slot, sampling.banned_token_ids) for slot, sampling in settings if sampling.banned_token_ids]:
            self.bias[self._pairs(banned)] = -torch.inf
        if biased := [(slot, sampling.logit_bias) for slot, sampling in settings if sampling.logit_bias]:
            pairs = self._pairs([(slot, [token_id for token_id, _ in bias]) for slot, bias in biased])
            values = upload([value for _, bias in biased for _, value in bias], np.float32, self.device)
            self.bias.index_put_(pairs, values, accumulate=True)

    def _pairs(self, ids_of_slots: Sequence[tuple[int, Sequence[int] | Int32Array]]) -> tuple[Tensor, Tensor]:
        """int64, equally long: a slot for each id, and the ids."""
        slots = np.repeat([slot for slot, _ in ids_of_slots], [len(ids) for _, ids in ids_of_slots])
        token_ids = np.concatenate([np.asarray(ids, np.int64) for _, ids in ids_of_slots])
        return upload(slots, np.int64, self.device), upload(token_ids, np.int64, self.device)


def _repeated(logits: Tensor, penalty: Tensor) -> Tensor:
    """Kept finite above: a logit that a tiny penalty blows up is the likeliest, and no failure of the model."""
    return torch.where(logits > 0, logits / penalty, logits * penalty).clamp_(max=torch.finfo(logits.dtype).max)
