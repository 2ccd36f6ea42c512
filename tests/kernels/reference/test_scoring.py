# SPDX-License-Identifier: Apache-2.0
"""Logprobs are of the model's own law, and the most likely ids come in one order."""

from __future__ import annotations

import math

import pytest
import torch

from kernels.reference import scoring
from kernels.reference.scoring import score

LAW = torch.tensor([0.05, 0.5, 0.15, 0.3])


def random_logits(num_rows: int, vocabulary_size: int) -> torch.Tensor:
    return 5 * torch.randn(num_rows, vocabulary_size, generator=torch.Generator().manual_seed(1))


def test_logprobs_are_the_logarithm_of_the_known_law() -> None:
    """B30: every id's, the first or the last; exponentials sum to 1."""
    logprobs, top_token_ids, top_logprobs = score((LAW.log() + 3).expand(4, -1), torch.arange(4), 4)
    torch.testing.assert_close(logprobs, LAW.log())
    assert top_token_ids.tolist() == [[1, 3, 2, 0]] * 4
    torch.testing.assert_close(top_logprobs[0], LAW.log()[[1, 3, 2, 0]])
    assert (top_logprobs.exp().sum(dim=-1) <= 1 + 1e-6).all()


@pytest.mark.parametrize("size", [320, 49152])
def test_logprobs_equal_a_log_softmax(size: int) -> None:
    logits, token_ids = random_logits(9, size), torch.arange(9)
    logprobs, top_token_ids, top_logprobs = score(logits, token_ids, 20)
    expected = logits.double().log_softmax(dim=-1)
    assert torch.allclose(logprobs.double(), expected[token_ids, token_ids], rtol=0, atol=2e-6)
    top = expected.topk(20)
    assert torch.equal(top_token_ids.long(), top.indices)
    assert torch.allclose(top_logprobs.double(), top.values, rtol=0, atol=2e-6)
    assert torch.equal(score(logits, top_token_ids[:, 3].long(), 0)[0], top_logprobs[:, 3])


def test_of_equals_the_lower_id_comes_first() -> None:
    logits = torch.zeros(1, 5000)
    logits[0, [4000, 70, 900]] = 2.0
    logits[0, 10] = -0.0
    assert score(logits, torch.tensor([0]), 6)[1].tolist() == [[70, 900, 4000, 0, 1, 2]]


@pytest.mark.parametrize("max_logits", [1, 1000, 2**22])
def test_a_row_has_the_same_bits_whatever_is_scored_with_it(monkeypatch: pytest.MonkeyPatch, max_logits: int) -> None:
    """Other rows, other numbers of alternatives, other slices."""
    logits, token_ids = random_logits(11, 320), torch.arange(11)
    together = score(logits, token_ids, 20)
    monkeypatch.setattr(scoring, "_MAX_LOGITS", max_logits)
    for num_top in (0, 1, 5, 20):
        for rows in (slice(0, 11), slice(3, 4), slice(6, 11)):
            part = score(logits[rows], token_ids[rows], num_top)
            assert torch.equal(part[0], together[0][rows])
            assert torch.equal(part[1], together[1][rows, :num_top])
            assert torch.equal(part[2], together[2][rows, :num_top])


def test_more_alternatives_than_ids_are_all_ids() -> None:
    assert score(LAW.log()[None], torch.tensor([0]), 20)[1].shape == (1, 4)


def test_an_id_without_probability_has_minus_infinity() -> None:
    logits = torch.tensor([[0.0, -math.inf]])
    assert score(logits, torch.tensor([1]), 2)[0].tolist() == [-math.inf]
