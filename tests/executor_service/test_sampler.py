# SPDX-License-Identifier: Apache-2.0
"""What a row's settings mean, and that its neighbours do not matter."""

from __future__ import annotations

import torch

from executor_service.sampler import logprobs_of, sample
from executor_service.sequence import Sampling

LAW = torch.tensor([0.5, 0.3, 0.15, 0.05])


def frequencies(sampling: Sampling, num_draws: int = 4000) -> torch.Tensor:
    """Of ids over many output positions, from the law above."""
    logits = LAW.log().expand(num_draws, -1).contiguous()
    token_ids = sample(logits, [sampling] * num_draws, list(range(num_draws)))
    return torch.bincount(token_ids.long(), minlength=4) / num_draws


def is_near(actual: torch.Tensor, *expected: float) -> bool:
    return bool(((actual - torch.tensor(expected)).abs() < 0.03).all())


def test_temperature_one_follows_the_law() -> None:
    assert is_near(frequencies(Sampling(temperature=1.0, seed=3)), *LAW.tolist())


def test_temperature_sharpens_and_flattens() -> None:
    squared = LAW.square() / LAW.square().sum()
    assert is_near(frequencies(Sampling(temperature=0.5, seed=4)), *squared.tolist())


def test_top_k_keeps_the_first_k() -> None:
    assert is_near(frequencies(Sampling(temperature=1.0, top_k=2, seed=5)), 0.625, 0.375, 0, 0)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    assert is_near(frequencies(Sampling(temperature=1.0, top_p=0.7, seed=6)), 0.625, 0.375, 0, 0)
    assert is_near(frequencies(Sampling(temperature=1.0, top_p=0.0, seed=6)), 1, 0, 0, 0)


def test_top_p_counts_what_top_k_left() -> None:
    assert is_near(frequencies(Sampling(temperature=1.0, top_k=2, top_p=0.6, seed=7)), 1, 0, 0, 0)


def test_zero_tiny_temperature_and_top_k_one_are_greedy() -> None:
    for sampling in (Sampling(), Sampling(temperature=1e-6), Sampling(temperature=1.0, top_k=1)):
        assert is_near(frequencies(sampling, 50), 1, 0, 0, 0)


def test_row_does_not_depend_on_its_neighbours() -> None:
    logits = torch.randn(40, 320, generator=torch.Generator().manual_seed(0))
    settings = [
        Sampling(temperature=0.8, seed=1),
        Sampling(),
        Sampling(temperature=1.2, top_k=7, seed=2**64 - 1),
        Sampling(temperature=1.0, top_p=0.5, seed=3, choice_index=2),
    ]
    samplings = [settings[r % 4] for r in range(40)]
    positions = [r * 3 for r in range(40)]
    together = sample(logits, samplings, positions).tolist()
    alone = [sample(logits[r : r + 1], [samplings[r]], [positions[r]]).item() for r in range(40)]
    assert together == alone


def test_logprobs_are_of_the_law_before_temperature() -> None:
    logits = LAW.log()[None].repeat(4, 1)
    assert torch.allclose(logprobs_of(logits, torch.arange(4, dtype=torch.int32)), LAW.log())
