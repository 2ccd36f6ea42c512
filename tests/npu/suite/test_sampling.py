# SPDX-License-Identifier: Apache-2.0
"""The sampler on the device: of equal logits it chooses the ids that the CPU's chooses, whatever a row asks for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import kernels
from executor_service.device.sampler import Sampler
from executor_service.scheduling.sequence import Sampling
from executor_service.scheduling.step import Limits
from kernels import reference
from tests.fixtures.sampling_rows import mask_of, sampling_row
from tests.npu import stub

V = 1500
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "plain": {"temperature": 0.9},
    "top_k": {"temperature": 1.2, "top_k": 40},
    "top_p": {"temperature": 1.5, "top_p": 0.8},
    "min_p": {"temperature": 1.5, "min_p": 0.05},
    "all": {"temperature": 0.7, "top_k": 100, "top_p": 0.95, "min_p": 0.01},
    "penalized": {"temperature": 0.8, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.4},
    "biased": {"temperature": 1.0, "logit_bias": ((7, 4.0), (9, -3.0)), "allowed_token_ids": tuple(range(0, V, 3))},
    "limited": {},
}
NUM_STEPS = 3


@pytest.fixture
def ops(simulated: Any, device: torch.device, dtype: torch.dtype) -> Any:
    return kernels.load("npu", device, kernels.Shape(4, 2, 128, 128, dtype))


def sampled(backend: Any, device: torch.device) -> list[list[int]]:
    """Of a few steps, each with all kinds of rows."""
    sampler = Sampler(backend, V, len(KINDS), device)
    generator = torch.Generator().manual_seed(0)
    steps = []
    for position in range(NUM_STEPS):
        logits = 3 * torch.randn(len(KINDS), V, generator=generator)
        rows = [
            sampling_row(Sampling(seed=i, **fields), position, slot=i, prompt=[1, 2, 3] if position == 0 else None)
            for i, fields in enumerate(KINDS.values())
        ]
        limits = [Limits((5,), mask_of(range(5, 50), V)) if kind == "limited" else None for kind in KINDS]
        steps.append(sampler.sample(logits.to(device), rows, limits).tolist())
    return steps


def test_ids_are_those_of_the_cpu(ops: Any, device: torch.device) -> None:
    assert sampled(ops, device) == sampled(reference, torch.device("cpu"))


def test_scores_are_those_of_the_cpu(ops: Any, device: torch.device) -> None:
    logits = 3 * torch.randn(4, V, generator=torch.Generator().manual_seed(0))
    token_ids = torch.tensor([0, 7, V - 1, 3], dtype=torch.int32)
    found = ops.score(logits.to(device), token_ids.to(device), 5)
    for ours, expected in zip(found, reference.score(logits, token_ids, 5), strict=True):
        torch.testing.assert_close(ours.cpu(), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_of_each_kind_does_not_wait(device: torch.device, dtype: torch.dtype, kind: str) -> None:
    """Without the simulation."""
    backend = kernels.load("npu", device, kernels.Shape(4, 2, 128, 128, dtype))
    sampler = Sampler(backend, V, 1, device)
    row = sampling_row(Sampling(**KINDS[kind]), prompt=[1, 2])
    logits = torch.empty(1, V, device=device)
    limits = Limits((5,), np.full(-(-V // 32), 2**32 - 1, np.uint32)) if kind == "limited" else None
    stub.reset()
    sampler.sample(logits, [row], [limits])
    assert [entry for entry in stub.log() if entry.startswith(("sync", "waiting"))] == []
    assert stub.log().count("copy H2D") == 1
