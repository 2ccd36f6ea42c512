# SPDX-License-Identifier: Apache-2.0
"""The next id of each row, chosen on the device in one pass over all rows.

A row's choice depends on its logits, its settings and its output position only. Does not know sequences.
"""

from __future__ import annotations

import torch

from executor_service.generator import exponential
from executor_service.sequence import Sampling


def sample(logits: torch.Tensor, samplings: list[Sampling], positions: list[int]) -> torch.Tensor:
    """int32 [R] from float32 logits [R, V]. positions: each row's output position, which keys the generator."""
    token_ids = logits.argmax(dim=-1)  # [R]
    drawn = [r for r, sampling in enumerate(samplings) if not sampling.is_greedy]
    if drawn:
        rows = torch.tensor(drawn, device=logits.device)
        chosen = _draw(logits[rows], [samplings[r] for r in drawn], [positions[r] for r in drawn])
        token_ids[rows] = chosen
    return token_ids.int()


def logprobs_of(logits: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """float32 [R]: natural logarithm of the probability before temperature and filters."""
    return logits.log_softmax(dim=-1).gather(1, token_ids.long()[:, None])[:, 0]


def _draw(logits: torch.Tensor, samplings: list[Sampling], positions: list[int]) -> torch.Tensor:
    """Exponential race: argmin of Exp(1) / p is distributed as p. It needs no sum over the vocabulary."""
    device = logits.device
    temperatures = torch.tensor([s.temperature for s in samplings], device=device)
    scores = _filtered(logits / temperatures[:, None], samplings)
    race = exponential(
        torch.tensor([_signed(s.seed) for s in samplings], device=device),
        torch.tensor([s.choice_index for s in samplings], device=device),
        torch.tensor(positions, device=device),
        logits.shape[1],
    )
    return (scores - race.log()).argmax(dim=-1)


def _filtered(scores: torch.Tensor, samplings: list[Sampling]) -> torch.Tensor:
    """-inf outside top-k, then outside top-p of what top-k left. Ids that tie with the last one kept are kept."""
    vocabulary_size = scores.shape[1]
    top_ks = [s.top_k if 0 < s.top_k < vocabulary_size else vocabulary_size for s in samplings]
    top_ps = [s.top_p for s in samplings]
    if min(top_ks) == vocabulary_size and min(top_ps) >= 1:
        return scores
    ordered = scores.sort(dim=-1, descending=True).values  # [R, V]
    ranks = torch.arange(vocabulary_size, device=scores.device)[None]
    is_kept = ranks < torch.tensor(top_ks, device=scores.device)[:, None]
    probabilities = ordered.masked_fill(~is_kept, -torch.inf).softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities  # what the likelier ids hold together
    limits = torch.tensor([p if p < 1 else torch.inf for p in top_ps], device=scores.device)[:, None]
    is_kept &= (before < limits) | (ranks == 0)
    thresholds = ordered.masked_fill(~is_kept, torch.inf).amin(dim=-1, keepdim=True)
    return scores.masked_fill(scores < thresholds, -torch.inf)


def _signed(seed: int) -> int:
    """The same 64 bits as int64."""
    return seed - 2**64 if seed >= 2**63 else seed
