# SPDX-License-Identifier: Apache-2.0
"""The generator is Philox4x32-10, and a draw is keyed by its three numbers alone."""

from __future__ import annotations

import numpy as np

from executor_service.device.generator import draws, philox


def words(counter: tuple[int, ...], key: tuple[int, int]) -> list[int]:
    c0, c1, c2, c3, k0, k1 = (np.array([value], np.uint64) for value in (*counter, *key))
    return [int(word[0]) for word in philox((c0, c1, c2, c3), (k0, k1))]


def draw(seed: int = 1, choice: int = 0, position: int = 0) -> tuple[int, int]:
    upper, lower = draws([seed], [choice], [position])[:, 0].tolist()
    return upper, lower


def test_known_answers() -> None:
    """Of Random123's kat_vectors, philox 4x32 10."""
    ones = 0xFFFFFFFF
    assert words((0, 0, 0, 0), (0, 0)) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert words((ones,) * 4, (ones, ones)) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    counter, key = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0)
    assert words(counter, key) == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


def test_a_draw_is_the_upper_30_bits_of_two_words() -> None:
    assert draw(seed=0) == (0x6627E8D5 >> 2, 0xE169C58D >> 2)


def test_each_part_of_the_key_counts() -> None:
    others = [draw(seed=2), draw(seed=1 + 2**32), draw(seed=2**64 - 1), draw(choice=1), draw(position=1)]
    assert len({draw(), *others}) == 6


def test_a_draw_depends_on_its_key_only() -> None:
    assert tuple(draws([9, 1, 7], [0, 0, 0], [5, 0, 5])[:, 1]) == draw()


def test_draws_are_uniform_over_positions_and_over_seeds() -> None:
    count, zeros = 100_000, [0] * 100_000
    for found in (draws([7] * count, zeros, range(count)), draws(range(count), zeros, zeros)):
        for part in found / 2**30:
            in_bins = np.bincount((part * 20).astype(int), minlength=20)
            assert 0 <= part.min() < part.max() < 1
            assert ((in_bins - 5000) ** 2 / 5000).sum() < 50.8  # chi-square, 19 degrees of freedom, p = 1e-4
