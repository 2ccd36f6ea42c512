# SPDX-License-Identifier: Apache-2.0
"""The next id of each row, chosen on the device in one pass over all rows, whose numbers go down in one copy.

A row's choice depends on its logits, its settings, its output so far and its output position only: neighbours change
not a bit of it. Order: penalties, bias, limits, temperature, top-k, top-p, min-p, one draw. Does not know sequences.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from executor_service.device.generator import draws
from executor_service.device.limiting import apply_limits, limit_arrays
from executor_service.device.sampler_state import SamplerState, state_arrays
from executor_service.device.transfer import upload
from executor_service.scheduling.sequence import Sampling
from executor_service.scheduling.step import Failure, Limits, StepRow
from kernels import Backend
from kernels.sampling_rows import NOTHING_ALLOWED, PART_BITS, SamplingRows

_CODES = {Failure.NOT_FINITE: -1, Failure.NOTHING_ALLOWED: NOTHING_ALLOWED}
_FAILURES = {code: failure for failure, code in _CODES.items()}
_MAX_SCALE = float(np.finfo(np.float32).max)


class Sampler:
    """Keeps the rows' state on the device between steps. A row has a slot below num_slots to itself."""

    def __init__(self, ops: Backend, vocabulary_size: int, num_slots: int, device: torch.device) -> None:
        self.ops = ops
        self.vocabulary_size = vocabulary_size
        self.device = device
        self._state = SamplerState(num_slots, vocabulary_size, device)

    @property
    def num_bytes(self) -> int:
        """On the device, for as long as this exists."""
        return self._state.num_bytes

    def sample(self, logits: Tensor, rows: Sequence[StepRow], limits: Sequence[Limits | None]) -> Tensor:
        """int32 [R]: the id of each row, or a code below 0 that failure_of reads. Uses up logits, float32 [R, V].

        rows: those that sample, each with its sampling; limits: of each.
        """
        samplings = [_sampling(row) for row in rows]
        stateful = [s for s in samplings if s.has_state]
        arrays = law_arrays(samplings, [row.output_position for row in rows], self.vocabulary_size)
        arrays |= state_arrays(rows) | limit_arrays(limits)
        sent = dict(zip(arrays, upload(list(arrays.values()), self.device), strict=True))
        is_broken = ~logits.amax(dim=-1).isfinite()  # [R]; NaN anywhere in a row is its maximum
        if stateful:
            self._state.begin(sent)
            self._state.adjust(logits, sent, stateful)
        apply_limits(logits, sent)
        token_ids = self.ops.choose(logits, sampling_rows(samplings, sent, self.vocabulary_size))
        if stateful:
            self._state.count(token_ids, sent)
        return token_ids.masked_fill(is_broken, _CODES[Failure.NOT_FINITE])


def failure_of(token_id: int) -> Failure | None:
    return _FAILURES.get(token_id)


def _sampling(row: StepRow) -> Sampling:
    assert row.sampling, "a row that samples says how"
    return row.sampling


def law_arrays(
    samplings: Sequence[Sampling], positions: Sequence[int], vocabulary_size: int
) -> dict[str, npt.NDArray[Any]]:
    """The tensors of SamplingRows, by name: 24 bytes a row."""
    return {
        "scales": np.array([_scale(s) for s in samplings], np.float32),
        "top_ks": np.array([_top_k(s, vocabulary_size) for s in samplings], np.int32),
        "top_ps": np.array([_top_p(s) for s in samplings], np.int32),
        "min_scores": np.array([math.log2(s.min_p) if s.min_p else -math.inf for s in samplings], np.float32),
        "draws": draws([s.seed for s in samplings], [s.choice_index for s in samplings], positions),
    }


def sampling_rows(samplings: Sequence[Sampling], sent: Mapping[str, Tensor], vocabulary_size: int) -> SamplingRows:
    kinds = [_kind(sampling, vocabulary_size) for sampling in samplings]
    drawing = [s for s, kind in zip(samplings, kinds, strict=True) if kind is not _Kind.GREEDY]
    top_ks = [top_k for s in drawing if (top_k := _top_k(s, vocabulary_size)) < vocabulary_size]
    return SamplingRows(
        sent["scales"],
        sent["top_ks"],
        sent["top_ps"],
        sent["min_scores"],
        sent["draws"],
        **{kind.value: tuple(r for r, other in enumerate(kinds) if other is kind) for kind in _Kind},
        max_top_k=max(top_ks, default=0),
        are_topped=len(top_ks) == len(drawing),
    )


class _Kind(Enum):
    """Of a row, as SamplingRows names it."""

    GREEDY = "greedy"
    PLAIN = "plain"
    FILTERED = "filtered"


def _kind(sampling: Sampling, vocabulary_size: int) -> _Kind:
    if sampling.is_greedy:
        return _Kind.GREEDY
    keeps_all = _top_k(sampling, vocabulary_size) == vocabulary_size and _top_p(sampling) == 1 << PART_BITS
    return _Kind.PLAIN if keeps_all and not sampling.min_p else _Kind.FILTERED


def _scale(sampling: Sampling) -> float:
    return 0.0 if sampling.is_greedy else min(math.log2(math.e) / sampling.temperature, _MAX_SCALE)


def _top_k(sampling: Sampling, vocabulary_size: int) -> int:
    """V where all are kept."""
    return sampling.top_k if 0 < sampling.top_k < vocabulary_size else vocabulary_size


def _top_p(sampling: Sampling) -> int:
    """In parts of 2**PART_BITS; no part that is begun is left out."""
    return min(math.ceil(sampling.top_p * (1 << PART_BITS)), 1 << PART_BITS)
