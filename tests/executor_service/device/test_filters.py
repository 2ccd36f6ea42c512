# SPDX-License-Identifier: Apache-2.0
"""What top-k, top-p and min-p keep, against the written rules and whatever the search."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from executor_service.device import filters
from executor_service.device.filters import keep
from executor_service.device.law import masses
from executor_service.scheduling.sequence import Sampling
from tests.fixtures.sampling_rows import law_of

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


def kept(scores: torch.Tensor, samplings: list[Sampling]) -> torch.Tensor:
    return keep(scores, masses(scores), samplings)


def random_scores(num_rows: int, vocabulary_size: int, seed: int = 0) -> torch.Tensor:
    logits = 3 * torch.randn(num_rows, vocabulary_size, generator=torch.Generator().manual_seed(seed))
    return logits - logits.amax(dim=-1, keepdim=True)


@pytest.mark.parametrize("max_sorted", [0, 1024])
def test_keeps_what_the_rules_keep(monkeypatch: pytest.MonkeyPatch, max_sorted: int) -> None:
    """By order, and by the search that larger numbers take."""
    monkeypatch.setattr(filters, "MAX_SORTED", max_sorted)
    scores = random_scores(4 * len(SETTINGS), 320)
    samplings = SETTINGS * 4
    weights = kept(scores, samplings)
    for row, row_scores, sampling in zip(weights, scores, samplings, strict=True):
        law = law_of(row_scores.double().numpy(), sampling)
        assert ((row > 0) == torch.from_numpy(law > 0)).all(), sampling
        assert np.allclose(row / row.sum(), law, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("max_sorted", [0, 1024])
def test_ties_with_the_last_one_kept_are_kept(monkeypatch: pytest.MonkeyPatch, max_sorted: int) -> None:
    monkeypatch.setattr(filters, "MAX_SORTED", max_sorted)
    scores = torch.tensor([[0.25, 0.5, 0.125, 0.25, 0.25, 0.125]]).div(0.5).log()
    for sampling in (Sampling(1.0, top_k=2), Sampling(1.0, top_p=0.4), Sampling(1.0, min_p=0.5)):
        assert kept(scores, [sampling]).bool().tolist() == [[True, True, False, True, True, False]], sampling
    tied = torch.zeros(1, 6)
    for sampling in (Sampling(1.0, top_k=2), Sampling(1.0, top_p=0.01), Sampling(1.0, min_p=1.0)):
        assert kept(tied, [sampling]).bool().all(), sampling


@pytest.mark.parametrize("max_sorted", [0, 1024])
def test_top_p_counts_ids_that_tied_into_top_k(monkeypatch: pytest.MonkeyPatch, max_sorted: int) -> None:
    """Four ids are left by top_k=2: the likeliest holds 4 of 10, two of them 6."""
    monkeypatch.setattr(filters, "MAX_SORTED", max_sorted)
    scores = torch.tensor([[0.4, 0.2, 0.2, 0.2, 0.1]]).div(0.4).log()
    assert kept(scores, [Sampling(1.0, top_k=2, top_p=0.35)]).count_nonzero() == 1
    for top_p in (0.5, 0.9):
        assert kept(scores, [Sampling(1.0, top_k=2, top_p=top_p)]).count_nonzero() == 4


@pytest.mark.parametrize("size", [320, 49152])
def test_a_row_keeps_the_same_bits_in_any_company(size: int) -> None:
    """Also where another row's top-k makes the order longer, and on one thread or two."""
    samplings = [*SETTINGS, Sampling(1.0, top_k=900, top_p=0.9), Sampling(1.0, top_k=5000, top_p=0.9)]
    scores = random_scores(len(samplings), size)
    together = kept(scores, samplings)
    num_threads = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            for r, sampling in enumerate(samplings):
                assert torch.equal(kept(scores[r : r + 1], [sampling])[0], together[r]), sampling
            assert torch.equal(kept(scores.flip(0), samplings[::-1]).flip(0), together)
    finally:
        torch.set_num_threads(num_threads)


def test_a_mass_that_float64_rounds_up_is_still_reached() -> None:
    """Nearly flat laws of many ids weigh more than 2**53; a few unlikely ones make the sum odd."""
    scores = -1e-3 * torch.rand(16, 49152, generator=torch.Generator().manual_seed(0))
    scores[:, :100] = -20 - 5 * torch.rand(16, 100, generator=torch.Generator().manual_seed(1))
    lowest = scores.topk(2, largest=False).values[:, 1:]
    totals = masses(scores).where(scores >= lowest, 0).sum(dim=-1)
    assert any(int(float(total)) > total for total in totals.tolist())
    assert torch.equal(kept(scores, [Sampling(1.0, top_k=49151)] * 16) > 0, scores >= lowest)


def test_rows_without_a_law_break_nothing() -> None:
    scores = torch.full((2, 4096), torch.nan)
    scores[1] = -scores[1]
    kept(scores, [Sampling(1.0, top_p=0.9), Sampling(1.0, top_k=2000, top_p=0.9)])
