# SPDX-License-Identifier: Apache-2.0
"""Masses add up exactly, and a draw lands where its mass lies, at the edges too."""

from __future__ import annotations

import pytest
import torch

from executor_service.device.law import ONE, draw, magnitude_bits, masses


def test_masses_are_proportional_to_probabilities() -> None:
    law = torch.tensor([0.5, 0.25, 0.2, 0.05, 0.0])
    found = masses((law / 0.5).log())
    assert found[0] == ONE
    assert found[-1] == 0
    assert torch.allclose(found / found.sum(), law, rtol=0, atol=1e-7)


def test_a_mass_does_not_depend_on_where_its_score_stands() -> None:
    """Vectorized exponentials treat the ends of a tensor apart; a row's bits would then depend on its batch."""
    scores = -40 * torch.rand(4099, generator=torch.Generator().manual_seed(0))
    together = masses(scores)
    for start, length in ((0, 1), (1, 2), (3, 31), (7, 33), (5, 2048), (2, 4097)):
        assert torch.equal(masses(scores[start : start + length]), together[start : start + length])


def test_a_draw_lands_in_its_part_of_the_mass() -> None:
    weights = torch.tensor([[0, 3, 0, 1, 0]])
    for uniform, token_id in ((0.0, 1), (0.7499999, 1), (0.75, 3), (1 - 2.0**-53, 3)):
        assert draw(weights, torch.tensor([uniform], dtype=torch.float64)).tolist() == [token_id]


@pytest.mark.parametrize("first", [0, *(2**k + i for k in (52, 53, 56, 59) for i in range(-9, 10))])
def test_the_last_draw_of_all_stays_inside(first: int) -> None:
    """Totals beyond 2**53 are rounded, up or down."""
    weights = torch.tensor([[first, 1, 0]])
    token_id = draw(weights, torch.tensor([1 - 2.0**-53], dtype=torch.float64)).item()
    assert token_id == 1 if first < 2**53 else token_id in (0, 1)


def test_a_row_without_a_law_gets_an_id() -> None:
    assert draw(torch.zeros(1, 3, dtype=torch.int64), torch.tensor([0.5], dtype=torch.float64)).item() in (0, 1, 2)


def test_magnitude_bits_order_scores() -> None:
    scores = torch.tensor([0.0, -0.0, -1e-38, -1e-3, -1.0, -88.0, -torch.inf])
    bits = magnitude_bits(scores).tolist()
    assert bits[0] == bits[1] == 0
    assert bits == sorted(bits)
    assert len(set(bits)) == 6
