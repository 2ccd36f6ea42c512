# SPDX-License-Identifier: Apache-2.0
"""The next id of each row, chosen on the device in one pass over all rows.

A row's choice depends on its logits, its settings, its output so far and its output position only: neighbours change
not a bit of it. Order: penalties, bias, limits, temperature, top-k, top-p, min-p, one draw. Does not know sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import numpy as np
import torch
from torch import Tensor

from executor_service.device.filters import has_filter, keep
from executor_service.device.generator import uniform
from executor_service.device.law import draw, masses
from executor_service.device.limiting import apply_limits
from executor_service.device.sampler_state import SamplerState
from executor_service.device.transfer import take, upload
from executor_service.scheduling.sequence import Sampling
from executor_service.scheduling.step import Failure, Limits, StepRow

_CODES = {Failure.NOT_FINITE: -1, Failure.NOTHING_ALLOWED: -2}
_FAILURES = {code: failure for failure, code in _CODES.items()}


class Sampler:
    """Keeps the rows' state on the device between steps; made for one vocabulary at the first of them."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._state: SamplerState | None = None

    def sample(self, logits: Tensor, rows: Sequence[StepRow], limits: Sequence[Limits | None]) -> Tensor:
        """int32 [R]: the id of each row, or a code below 0 that failure_of reads. Uses up logits, float32 [R, V].

        rows: those that sample, each with its sampling; limits: of each.
        """
        is_broken = ~logits.amax(dim=-1).isfinite()  # [R]; NaN anywhere in a row is its maximum
        stateful = [r for r, row in enumerate(rows) if row.state_slot >= 0]
        state = self._state_of(logits) if stateful else None
        if state:
            state.begin(rows)
            index = upload(stateful, np.int64, self.device)
            slots = upload([rows[r].state_slot for r in stateful], np.int64, self.device)
            logits[index] = state.adjusted(logits[index], slots, [_sampling(rows[r]) for r in stateful])
        apply_limits(logits, limits)
        highest = logits.amax(dim=-1, keepdim=True)  # [R, 1]
        token_ids = choose(logits, highest, [_sampling(row) for row in rows], [row.output_position for row in rows])
        if state:
            state.count(slots, token_ids[index])
        token_ids = token_ids.masked_fill(highest[:, 0] == -torch.inf, _CODES[Failure.NOTHING_ALLOWED])
        return token_ids.masked_fill(is_broken, _CODES[Failure.NOT_FINITE]).int()

    def _state_of(self, logits: Tensor) -> SamplerState:
        self._state = self._state or SamplerState(logits.shape[1], self.device)
        return self._state


def failure_of(token_id: int) -> Failure | None:
    return _FAILURES.get(token_id)


def choose(logits: Tensor, highest: Tensor, samplings: Sequence[Sampling], positions: Sequence[int]) -> Tensor:
    """int64 [R], from adjusted logits [R, V] and their highest [R, 1]. positions, in the output, key the draws."""
    token_ids = torch.empty(len(samplings), dtype=torch.int64, device=logits.device)
    for kind, rows in _by_kind(samplings, logits.shape[1]).items():
        index = upload(rows, np.int64, logits.device)
        part = take(logits, index)
        if kind is _Kind.GREEDY:
            token_ids[index] = part.max(dim=-1).indices  # the first of equals
        else:
            settings = [samplings[r] for r in rows]
            scores = _scores(part, highest[index], settings)
            weights = masses(scores)
            if kind is _Kind.FILTERED:
                weights = keep(scores, weights, settings)
            token_ids[index] = draw(weights, _uniforms(settings, [positions[r] for r in rows], logits.device))
    return token_ids


class _Kind(Enum):
    """What a row pays for: one maximum, one sum, or a search beside it."""

    GREEDY = 0
    PLAIN = 1
    FILTERED = 2


def _by_kind(samplings: Sequence[Sampling], vocabulary_size: int) -> dict[_Kind, list[int]]:
    rows: dict[_Kind, list[int]] = {}
    for r, sampling in enumerate(samplings):
        rows.setdefault(_kind(sampling, vocabulary_size), []).append(r)
    return rows


def _kind(sampling: Sampling, vocabulary_size: int) -> _Kind:
    if sampling.is_greedy:
        return _Kind.GREEDY
    return _Kind.FILTERED if has_filter(sampling, vocabulary_size) else _Kind.PLAIN


def _scores(logits: Tensor, highest: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """[R, V]: <= 0. Taking the highest off first keeps a small temperature inside float32."""
    temperatures = upload([s.temperature for s in samplings], np.float32, logits.device)[:, None]
    return (logits - highest).div_(temperatures)


def _uniforms(samplings: Sequence[Sampling], positions: Sequence[int], device: torch.device) -> Tensor:
    draws = uniform([s.seed for s in samplings], [s.choice_index for s in samplings], positions)
    return upload(draws, np.float64, device)


def _sampling(row: StepRow) -> Sampling:
    assert row.sampling, "a row that samples says how"
    return row.sampling
