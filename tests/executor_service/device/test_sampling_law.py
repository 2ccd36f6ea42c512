# SPDX-License-Identifier: Apache-2.0
"""Draws follow the law that the settings make of the model's: chi-square over 20,000 draws, p = 1e-4, fixed seeds."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from executor_service.scheduling.sequence import Sampling
from tests.fixtures.decoding import load_decoder, logits_of
from tests.fixtures.sampling_rows import Float64Array, law_of, sample_once, sampling_row
from tests.fixtures.scripted_model import write_scripted_model

NUM_DRAWS = 20_000
LAST = 7
LAW = {
    10: 0.3,
    200: 0.2,
    31: 0.12,
    32: 0.1,
    0: 0.08,
    319: 0.06,
    64: 0.05,
    65: 0.04,
    66: 0.03,
    67: 0.01,
    68: 0.006,
    69: 0.004,
}
SETTINGS = [
    Sampling(1.0),
    Sampling(0.6),
    Sampling(1.7),
    Sampling(1.0, top_k=4),
    Sampling(1.0, top_p=0.75),
    Sampling(1.0, min_p=0.15),
    Sampling(0.8, top_k=7, top_p=0.9),
    Sampling(1.4, top_k=9, min_p=0.1),
    Sampling(0.7, top_p=0.85, min_p=0.05),
    Sampling(1.3, top_k=8, top_p=0.93, min_p=0.12),
]


@pytest.fixture(scope="module")
def logits(tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    """[1, V], of the scripted model after LAST."""
    directory: Path = tmp_path_factory.mktemp("scripted")
    return logits_of(load_decoder(write_scripted_model(directory, {LAST: LAW})), [LAST])[-1:]


def chi_square_limit(degrees: int) -> float:
    """Exceeded with p = 1e-4: Wilson and Hilferty's approximation, here 1% too high, with the normal
    quantile 3.719."""
    spread = 2 / (9 * degrees)
    return degrees * float((1 - spread + 3.719 * math.sqrt(spread)) ** 3)


def assert_follows(token_ids: list[int], law: Float64Array) -> None:
    """Ids that are expected fewer than 5 times count as one."""
    counts, expected = np.bincount(token_ids, minlength=len(law)), law * len(token_ids)
    assert not counts[law == 0].any(), "an id that the settings leave out was drawn"
    is_rare = expected < 5
    counts = np.append(counts[~is_rare], counts[is_rare].sum())
    expected = np.append(expected[~is_rare], expected[is_rare].sum())
    if expected[-1] == 0:
        counts, expected = counts[:-1], expected[:-1]
    assert ((counts - expected) ** 2 / expected).sum() < chi_square_limit(len(expected) - 1)


def known_law(sampling: Sampling) -> Float64Array:
    law = np.zeros(320)
    law[list(LAW)] = list(LAW.values())
    with np.errstate(divide="ignore"):
        return law_of(np.log(law), sampling)


@pytest.mark.parametrize("sampling", SETTINGS)
def test_draws_at_one_seed_s_positions_follow_the_law(logits: torch.Tensor, sampling: Sampling) -> None:
    rows = [sampling_row(sampling, position) for position in range(NUM_DRAWS)]
    assert_follows(sample_once(logits.expand(NUM_DRAWS, -1), rows), known_law(sampling))


@pytest.mark.parametrize("key", ["seed", "choice_index"])
def test_draws_of_many_rows_at_one_position_follow_the_law(logits: torch.Tensor, key: str) -> None:
    settings = {"temperature": 0.9, "top_p": 0.9}
    rows = [sampling_row(Sampling(**settings, **{key: i})) for i in range(NUM_DRAWS)]  # type: ignore[arg-type]
    assert_follows(sample_once(logits.expand(NUM_DRAWS, -1), rows), known_law(Sampling(**settings)))


def test_two_rows_draws_are_independent(logits: torch.Tensor) -> None:
    """Pairs of ids at equal positions of neighbouring seeds follow the product of their laws."""
    sampling = Sampling(1.0, top_k=4)
    law = known_law(sampling)
    one, other = (
        sample_once(
            logits.expand(NUM_DRAWS, -1),
            [sampling_row(Sampling(1.0, top_k=4, seed=seed), position) for position in range(NUM_DRAWS)],
        )
        for seed in (1, 2)
    )
    kept = {int(token_id): i for i, token_id in enumerate(np.flatnonzero(law))}
    pairs = [kept[a] * len(kept) + kept[b] for a, b in zip(one, other, strict=True)]
    assert_follows(pairs, np.outer(law[list(kept)], law[list(kept)]).ravel())


def test_written_meanings_of_the_edges(logits: torch.Tensor) -> None:
    """B27: none of these leaves an id out."""
    for top_k in (0, -1, 320, 321, 2**31 - 1):
        sampling = Sampling(1.0, top_k=top_k)
        assert np.array_equal(known_law(sampling), known_law(Sampling(1.0)))
        rows = [sampling_row(sampling, position) for position in range(2000)]
        plain = [sampling_row(Sampling(1.0), position) for position in range(2000)]
        assert sample_once(logits.expand(2000, -1), rows) == sample_once(logits.expand(2000, -1), plain)


@pytest.mark.parametrize("sampling", [Sampling(1.0, top_k=1), Sampling(1.0, top_p=0.0), Sampling(1.0, top_p=1e-9)])
def test_the_smallest_filters_are_greedy(logits: torch.Tensor, sampling: Sampling) -> None:
    """B27."""
    rows = [sampling_row(sampling, position) for position in range(200)]
    assert set(sample_once(logits.expand(200, -1), rows)) == {10}
