# SPDX-License-Identifier: Apache-2.0
"""What top-k, top-p and min-p keep, against the written rules and whatever the search."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch

from executor_service.scheduling.sequence import Sampling
from kernels.reference.filters import by_radix, keep_best, keep_found, keep_likely
from kernels.reference.law import joined, masses
from kernels.reference.sampling import Keep
from tests.fixtures.sampling_rows import law_of, rows_of

LOG2_E = np.log2(np.e)
BY_RADIX = partial(keep_found, search=by_radix)
SETTINGS = [
    Sampling(1.0, top_k=5),
    Sampling(1.0, top_k=200),
    Sampling(1.0, top_p=0.9),
    Sampling(1.0, top_p=0.3),
    Sampling(1.0, min_p=0.05),
    Sampling(1.0, min_p=1.0),
    Sampling(1.0, top_k=40, top_p=0.8),
    Sampling(1.0, top_k=300, top_p=0.95, min_p=0.02),
    Sampling(1.0, top_p=0.9, min_p=0.3),
    Sampling(1.0, top_k=3, top_p=0.01),
]


def kept(scores: torch.Tensor, samplings: Sequence[Sampling], keep: Keep) -> torch.Tensor:
    """int64 [R, W]: the masses that are left."""
    return joined(keep(scores, masses(scores), rows_of(samplings, scores.shape[1])))


def tiled(law: Sequence[float]) -> torch.Tensor:
    """[1, 1024]: scores of a law's few ids and of many without a mass."""
    values = torch.zeros(1, 1024)
    values[0, : len(law)] = torch.tensor(law)
    return (values / values.max()).log2()


def random_scores(num_rows: int, size: int, seed: int = 0) -> torch.Tensor:
    logits = 3 * torch.randn(num_rows, size, generator=torch.Generator().manual_seed(seed))
    return (logits - logits.amax(dim=-1, keepdim=True)) * LOG2_E


@pytest.mark.parametrize("max_sorted", [0, 1024])
def test_keeps_what_the_rules_keep(monkeypatch: pytest.MonkeyPatch, max_sorted: int) -> None:
    """By order, and by the search that larger numbers take."""
    monkeypatch.setattr("kernels.reference.filters.MAX_SORTED", max_sorted)
    scores = random_scores(4 * len(SETTINGS), 1024)
    samplings = SETTINGS * 4
    for row, row_scores, sampling in zip(kept(scores, samplings, BY_RADIX), scores, samplings, strict=True):
        law = law_of(row_scores.double().numpy() / LOG2_E, sampling)
        assert ((row > 0) == torch.from_numpy(law > 0)).all(), sampling
        assert np.allclose(row / row.sum(), law, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("keep", [BY_RADIX, keep_best], ids=["radix", "best"])
def test_top_k_and_ties(keep: Keep) -> None:
    """Ties with the last one kept are kept; top-p counts those that tied into top-k: of four ids that are left by
    top_k=2 the likeliest holds 4 of 10, two of them 6."""
    scores = tiled([0.25, 0.5, 0.125, 0.25, 0.25, 0.125])
    assert kept(scores, [Sampling(1.0, top_k=2)], keep).nonzero()[:, 1].tolist() == [0, 1, 3, 4]
    scores = tiled([0.4, 0.2, 0.2, 0.2, 0.1])
    assert kept(scores, [Sampling(1.0, top_k=2, top_p=0.35)], keep).count_nonzero() == 1
    for top_p in (0.5, 0.9):
        assert kept(scores, [Sampling(1.0, top_k=2, top_p=top_p)], keep).count_nonzero() == 4


def test_ties_with_the_last_one_kept_are_kept() -> None:
    scores = tiled([0.25, 0.5, 0.125, 0.25, 0.25, 0.125])
    for sampling in (Sampling(1.0, top_p=0.4), Sampling(1.0, min_p=0.5)):
        assert kept(scores, [sampling], BY_RADIX).nonzero()[:, 1].tolist() == [0, 1, 3, 4], sampling
    for sampling in (Sampling(1.0, top_p=0.01), Sampling(1.0, min_p=1.0)):
        assert kept(torch.zeros(1, 1024), [sampling], BY_RADIX).bool().all(), sampling


def test_min_p_alone_needs_no_search() -> None:
    scores, samplings = random_scores(2, 1024), [Sampling(1.0, min_p=0.1), Sampling(1.0, min_p=0.01)]
    assert torch.equal(kept(scores, samplings, keep_likely), kept(scores, samplings, BY_RADIX))


@pytest.mark.parametrize("size", [1024, 49152])
def test_ways_agree_on_every_bit(size: int) -> None:
    """Reading off the best and a search; in company and alone; on one thread or two."""
    samplings = [s for s in SETTINGS if s.top_k] + [Sampling(1.0, top_k=900, top_p=0.9)]
    scores = random_scores(len(samplings), size)
    expected = kept(scores, samplings, keep_best)
    num_threads = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert torch.equal(kept(scores, samplings, BY_RADIX), expected)
            for r, sampling in enumerate(samplings):
                for keep in (BY_RADIX, keep_best):
                    assert torch.equal(kept(scores[r : r + 1], [sampling], keep)[0], expected[r])
    finally:
        torch.set_num_threads(num_threads)


def test_a_large_mass_is_counted_to_the_last_part() -> None:
    """Nearly flat laws of many ids weigh more than float64 holds; a few unlikely ones make the sum odd."""
    scores = -1e-3 * torch.rand(4, 49152, generator=torch.Generator().manual_seed(0))
    scores[:, :100] = -30 - 5 * torch.rand(4, 100, generator=torch.Generator().manual_seed(1))
    lowest = scores.topk(2, largest=False).values[:, 1:]
    assert torch.equal(kept(scores, [Sampling(1.0, top_k=49151)] * 4, BY_RADIX) > 0, scores >= lowest)


@pytest.mark.parametrize("keep", [BY_RADIX, keep_best], ids=["radix", "best"])
def test_rows_without_a_law_break_nothing(keep: Keep) -> None:
    scores = torch.full((2, 4096), torch.nan)
    scores[1] = -scores[1]
    kept(scores, [Sampling(1.0, top_k=9, top_p=0.9), Sampling(1.0, top_k=1000, top_p=0.9)], keep)
