# SPDX-License-Identifier: Apache-2.0
"""The generator is Philox4x32-10, and a draw is keyed by its four numbers alone."""

from __future__ import annotations

import torch

from executor_service.generator import exponential, philox


def words(counter: tuple[int, ...], key: tuple[int, int]) -> list[int]:
    tensors = [torch.tensor([value]) for value in (*counter, *key)]
    result = philox((tensors[0], tensors[1], tensors[2], tensors[3]), (tensors[4], tensors[5]))
    return [int(word) for word in result]


def test_known_answers() -> None:
    """Of Random123's kat_vectors, philox 4x32 10."""
    ones = 0xFFFFFFFF
    assert words((0, 0, 0, 0), (0, 0)) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert words((ones,) * 4, (ones, ones)) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    counter, key = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
    assert words(counter, key) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


def draws(seed: int = 1, choice: int = 0, position: int = 0, num_draws: int = 1000) -> torch.Tensor:
    return exponential(torch.tensor([seed]), torch.tensor([choice]), torch.tensor([position]), num_draws)[0]


def test_each_part_of_the_key_counts() -> None:
    base = draws()
    others = [draws(seed=2), draws(seed=1 + 2**32), draws(seed=1 - 2**63), draws(choice=1), draws(position=1)]
    assert all(not torch.equal(base, other) for other in others)


def test_a_draw_depends_on_its_key_only() -> None:
    seeds, zeros = torch.tensor([9, 1, 7]), torch.zeros(3, dtype=torch.int64)
    assert torch.equal(exponential(seeds, zeros, zeros, 1000)[1], draws())
    assert torch.equal(draws(num_draws=77), draws()[:77])


def test_draws_follow_the_exponential_law() -> None:
    sample = draws(num_draws=200_000)
    assert abs(sample.mean().item() - 1) < 0.01
    assert abs(sample.std().item() - 1) < 0.02
    assert sample.min() > 0
