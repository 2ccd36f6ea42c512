# SPDX-License-Identifier: Apache-2.0
"""Masses follow the written law to the bit and add up exactly; a draw lands where its mass lies, at the edges too."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from kernels.reference.law import (
    COEFFICIENTS,
    LOWEST_SCORE,
    MASS_PART,
    ONE,
    TILE,
    draw,
    joined,
    magnitude_bits,
    masses,
    scores,
    share,
    total,
)


def random_scores(count: int) -> torch.Tensor:
    return -43 * torch.rand(count, generator=torch.Generator().manual_seed(0))


def written_mass(score: np.float32) -> int:
    """The law, one rounded operation after the other."""
    if not score >= LOWEST_SCORE:
        return 0
    whole = np.floor(score + np.float32(0.5))
    rest = score - whole
    power = np.float32(COEFFICIENTS[-1])
    for coefficient in COEFFICIENTS[-2::-1]:
        power = np.float32(power * rest) + np.float32(coefficient)
    return math.floor(Fraction(float(power)) * Fraction(2) ** int(whole) * ONE)


def parts_of(weights: list[int]) -> torch.Tensor:
    """int32 [2, 1, W]."""
    parts = torch.zeros(2, 1, -(-len(weights) // TILE) * TILE, dtype=torch.int32)
    for token_id, weight in enumerate(weights):
        parts[0, 0, token_id], parts[1, 0, token_id] = divmod(weight, MASS_PART)
    return parts


def drawn(weights: list[int], number: int) -> int:
    """number: below 2**60."""
    return int(draw(parts_of(weights), torch.tensor([divmod(number, 2**30)], dtype=torch.int32).T))


def test_masses_are_those_of_the_written_law() -> None:
    edges = [0.0, -0.0, -0.5, -0.49999997, -1.5, -1e-40, -20.0, -40.0, -40.5, -40.99999, -41.0, -41.000004, -1e30]
    values = torch.cat([torch.tensor([*edges, -math.inf]), random_scores(2000)])
    assert joined(masses(values)).tolist() == [written_mass(value) for value in values.numpy()]


def test_the_likeliest_id_has_the_whole_of_a_mass() -> None:
    assert joined(masses(torch.zeros(1))).tolist() == [ONE]


def test_masses_are_proportional_to_probabilities() -> None:
    law = torch.tensor([0.5, 0.25, 0.2, 0.05, 0.0])
    found = joined(masses((law / 0.5).log2())).double()
    assert torch.allclose(found / found.sum(), law.double(), rtol=3e-7, atol=1e-12)


def test_coefficients_are_float32_and_near_to_powers_of_two() -> None:
    assert all(coefficient == np.float32(coefficient) for coefficient in COEFFICIENTS)
    rest = np.linspace(-0.5, 0.5, 100_001)
    assert np.abs(np.polynomial.Polynomial(COEFFICIENTS)(rest) / 2**rest - 1).max() < 1e-7


def test_a_mass_does_not_depend_on_where_its_score_stands() -> None:
    """A vectorized function that treats the ends of a tensor apart would give a row other bits in another batch."""
    values = random_scores(4099)
    together = masses(values)
    for start, length in ((0, 1), (1, 2), (3, 31), (7, 33), (5, 2048), (2, 4097)):
        assert torch.equal(masses(values[start : start + length]), together[:, start : start + length])


@pytest.mark.parametrize("size", [1, 1023, 1024, 1025])
def test_scores_fill_tiles_with_ids_that_have_no_mass(size: int) -> None:
    logits = torch.randn(2, size, generator=torch.Generator().manual_seed(0))
    expected = (logits - logits.amax(-1, keepdim=True)) * np.float32(1.5)
    found = scores(logits.clone(), logits.amax(-1, keepdim=True), torch.full((2, 1), 1.5))
    assert found.shape[1] % TILE == 0
    assert torch.equal(found[:, :size], expected)
    assert not masses(found)[:, :, size:].any()


def test_totals_of_the_flattest_law_are_exact() -> None:
    """2**17 ids of the whole mass weigh 2**57: sums of 32 bits would not hold them, nor would float64 what is added."""
    values = torch.zeros(1, 2**17)
    values[0, 5] = -33.3
    assert int(total(masses(values))) == (2**17 - 1) * ONE + written_mass(np.float32(-33.3))


def test_a_share_is_rounded_down() -> None:
    for whole in (1, 2**30 - 1, 2**30, 2**57 + 12345, 2**59 + 987654321):
        for number in (0, 1, 2**29, 2**30 + 7, 2**59 + 3, 2**60 - 1):
            upper, lower = divmod(number, 2**30)
            found = int(share(torch.tensor([whole]), torch.tensor([upper]), torch.tensor([lower])))
            assert 0 <= whole * number // 2**60 - found <= 1
            assert found < whole
        assert int(share(torch.tensor([whole]), torch.tensor([2**30]))) == whole


@pytest.mark.parametrize("first", [0, 1000, 1023, 1024, 3000])
def test_a_draw_lands_in_its_part_of_the_mass(first: int) -> None:
    """Wherever the ids stand in their tiles."""
    weights = [0] * first + [0, 3 * ONE // 4, 0, ONE // 4, 0]
    for number, place in ((0, 1), (3 * 2**58 - 1, 1), (3 * 2**58, 3), (2**60 - 1, 3)):
        assert drawn(weights, number) == first + place


@pytest.mark.parametrize("size", [1, 3, 1024, 2500])
def test_draws_are_those_of_one_sum_over_all_ids(size: int) -> None:
    generator = np.random.default_rng(size)
    weights = [int(weight) for weight in generator.integers(0, 2**40, size) >> generator.integers(0, 41, size)]
    weights[0] = ONE
    upto = np.cumsum(np.array(weights, np.int64))
    for number in generator.integers(0, 2**60, 50).tolist():
        upper, lower = divmod(number, 2**30)
        target = int(share(torch.tensor([int(upto[-1])]), torch.tensor([upper]), torch.tensor([lower])))
        assert drawn(weights, number) == int(np.searchsorted(upto, target, side="right"))


def test_a_row_without_a_law_gets_an_id() -> None:
    assert 0 <= drawn([0, 0, 0], 2**59) < TILE


def test_magnitude_bits_order_scores() -> None:
    values = torch.tensor([0.0, -0.0, -1e-38, -1e-3, -1.0, -88.0, -torch.inf])
    bits = magnitude_bits(values).tolist()
    assert bits[0] == bits[1] == 0
    assert bits == sorted(bits)
    assert len(set(bits)) == 6
