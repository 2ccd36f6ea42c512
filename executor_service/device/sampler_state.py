# SPDX-License-Identifier: Apache-2.0
"""What sampling keeps on the device from step to step, by slot: counts of ids, and a bias for each.

Filled when a row first samples in a slot; ids that are sampled afterwards are counted where they are. Does not know
which rows exist.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from executor_service.scheduling.sequence import Sampling
from executor_service.scheduling.step import History, StepRow


class SamplerState:
    """counts: int32 [slots, V], of the output. seen: bool [slots, V], in prompt or output. bias: float32 [slots, V],
    -inf for ids that are never chosen."""

    def __init__(self, num_slots: int, vocabulary_size: int, device: torch.device) -> None:
        shape = (num_slots, vocabulary_size)
        self.counts = torch.zeros(shape, dtype=torch.int32, device=device)
        self.seen = torch.zeros(shape, dtype=torch.bool, device=device)
        self.bias = torch.zeros(shape, dtype=torch.float32, device=device)

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.counts, self.seen, self.bias))

    def begin(self, sent: Mapping[str, Tensor]) -> None:
        """For rows that bring their history: what a slot's last owner left gives way to it. sent: state_arrays."""
        if "begun" not in sent:
            return
        begun = sent["begun"].long()
        for tensor in (self.counts, self.seen, self.bias):
            tensor.index_fill_(0, begun, 0)
        if "closed" in sent:
            self.bias.index_fill_(0, sent["closed"].long(), -torch.inf)
        if "biased" in sent:
            self.bias.index_put_(_pairs(sent["biased"]), sent["biases"])
        if "seen" in sent:
            pairs = _pairs(sent["seen"])
            self.seen.index_put_(pairs, torch.ones_like(pairs[0], dtype=torch.bool))
            self.counts.index_put_(pairs, sent["counts"])

    def adjust(self, logits: Tensor, sent: Mapping[str, Tensor], samplings: Sequence[Sampling]) -> None:
        """In place, the rows of logits [R, V] that have state, samplings: of these: penalties, then the bias. What no
        row has costs nothing; a row that has none of what another has keeps its bits: 1 divides and multiplies, 0 is
        added and taken off."""
        rows, slots = sent["stateful"].long()
        repetition, frequency, presence = sent["penalties"][:, :, None]
        adjusted = logits[rows]
        if any(s.repetition_penalty != 1 for s in samplings):
            adjusted = torch.where(self.seen[slots], _repeated(adjusted, repetition), adjusted)
        if any(s.frequency_penalty or s.presence_penalty for s in samplings):
            counts = self.counts[slots]
            adjusted = adjusted - frequency * counts.float()
            adjusted -= presence * (counts > 0).float()
        if any(s.has_bias for s in samplings):
            adjusted = adjusted + self.bias[slots]
        logits[rows] = adjusted

    def count(self, token_ids: Tensor, sent: Mapping[str, Tensor]) -> None:
        """Ids that were just sampled, int32 [R], of the rows that have state; those of failed rows count as 0."""
        rows, slots = sent["stateful"].long()
        pairs = slots, token_ids[rows].clamp_(min=0).long()
        self.counts.index_put_(pairs, self.counts[pairs] + 1)
        self.seen.index_put_(pairs, torch.ones_like(slots, dtype=torch.bool))


def state_arrays(rows: Sequence[StepRow]) -> dict[str, npt.NDArray[Any]]:
    """What a SamplerState reads on the device, by name."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    stateful = [(r, row.slot, row.sampling) for r, row in enumerate(rows) if row.sampling and row.sampling.has_state]
    if stateful:
        arrays["stateful"] = np.array([(r, slot) for r, slot, _ in stateful], np.int32).T  # [2, rows]
        penalties = [(s.repetition_penalty, s.frequency_penalty, s.presence_penalty) for *_, s in stateful]
        arrays["penalties"] = np.array(penalties, np.float32).T  # [3, rows]
    begun = [(row.slot, row.history, row.sampling) for row in rows if row.history and row.sampling]
    if begun:
        arrays["begun"] = np.array([slot for slot, *_ in begun], np.int32)
        arrays |= _bias_arrays([(slot, sampling) for slot, _, sampling in begun])
        arrays |= _count_arrays([(slot, history) for slot, history, sampling in begun if sampling.has_penalties])
    return arrays


def _bias_arrays(begun: Sequence[tuple[int, Sampling]]) -> dict[str, npt.NDArray[Any]]:
    arrays: dict[str, npt.NDArray[Any]] = {}
    if closed := [slot for slot, sampling in begun if sampling.allowed_token_ids]:
        arrays["closed"] = np.array(closed, np.int32)
    if biases := [(slot, token_id, bias) for slot, s in begun for token_id, bias in _biases(s).items()]:
        arrays["biased"] = _array([(slot, token_id) for slot, token_id, _ in biases])
        arrays["biases"] = np.array([bias for *_, bias in biases], np.float32)
    return arrays


def _biases(sampling: Sampling) -> dict[int, np.float32]:
    """Of the ids whose bias is not that of all others, 0 or, where only some ids are allowed, -inf."""
    others = np.float32(-np.inf if sampling.allowed_token_ids else 0)
    biases = dict.fromkeys(sampling.allowed_token_ids, np.float32(0))
    biases |= dict.fromkeys(sampling.banned_token_ids, np.float32(-np.inf))
    for token_id, bias in sampling.logit_bias:
        biases[token_id] = biases.get(token_id, others) + np.float32(bias)
    return biases


def _count_arrays(histories: Sequence[tuple[int, History]]) -> dict[str, npt.NDArray[Any]]:
    if not histories:
        return {}
    counted = [_counted(slot, history) for slot, history in histories]
    pairs, counts = (np.concatenate(arrays, axis=-1) for arrays in zip(*counted, strict=True))
    return {"seen": pairs, "counts": counts}


def _counted(slot: int, history: History) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """int32 [2, n] of the slot and each id that was seen, once; int32 [n], how often it is in the output."""
    token_ids, places = np.unique(history.token_ids, return_inverse=True)
    counts = np.bincount(places[history.num_prompt_tokens :], minlength=len(token_ids))
    return np.stack([np.full_like(token_ids, slot), token_ids]).astype(np.int32), counts.astype(np.int32)


def _array(pairs: Iterable[tuple[int, int]]) -> npt.NDArray[np.int32]:
    """[2, pairs]."""
    return np.array(list(pairs), np.int32).T


def _pairs(tensor: Tensor) -> tuple[Tensor, Tensor]:
    first, second = tensor.long()
    return first, second


def _repeated(logits: Tensor, penalty: Tensor) -> Tensor:
    """Kept finite above: a logit that a tiny penalty blows up is the likeliest, and no failure of the model."""
    return torch.where(logits > 0, logits / penalty, logits * penalty).clamp_(max=torch.finfo(logits.dtype).max)
