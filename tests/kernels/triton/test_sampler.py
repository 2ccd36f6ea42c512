# SPDX-License-Identifier: Apache-2.0
"""Draws in one kernel: ids equal the reference's, whatever the settings."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kernels import reference as ops
from kernels.sampling_rows import PART_BITS, SamplingRows
from kernels.triton.cores import cores_of
from kernels.triton.sampler import choose
from tests.kernels.triton import DEVICE

CORES = cores_of(DEVICE)
ALL = 1 << PART_BITS
TEMPERATURES = [0.0, 1e-6, 0.01, 0.7, 1.0, 1.0, 2.0, 50.0]
TOP_PS = [0, 1, 107374182, 536870912, 1020054733, ALL - 1, ALL, ALL]
MIN_PS = [0.0, 0.0, 0.0, 1e-9, 0.05, 0.5, 1.0]
# numpy's, of the interpreter: a score may well be -inf.
pytestmark = [
    pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]


def settings(
    temperatures: Tensor, top_ks: Tensor, top_ps: Tensor, min_ps: Tensor, vocabulary_size: int
) -> SamplingRows:
    """Each [R], in order of their rows; draws are random."""
    num_rows = len(temperatures)
    is_drawn = temperatures > 0
    is_filtered = is_drawn & ((top_ks < vocabulary_size) | (top_ps < ALL) | (min_ps > 0))
    kept = top_ks[is_filtered & (top_ks < vocabulary_size)].tolist()
    return SamplingRows(
        scales=torch.where(is_drawn, math.log2(math.e) / temperatures, 0).float(),
        top_ks=top_ks.int(),
        top_ps=top_ps.int(),
        min_scores=min_ps.log2(),
        draws=torch.randint(ALL, (2, num_rows), dtype=torch.int32),
        greedy=places(~is_drawn),
        plain=places(is_drawn & ~is_filtered),
        filtered=places(is_filtered),
        max_top_k=max(kept, default=0),
    )


def places(is_in: Tensor) -> tuple[int, ...]:
    return tuple(is_in.nonzero()[:, 0].tolist())


def random_settings(num_rows: int, vocabulary_size: int, is_filtered: bool) -> SamplingRows:
    def one_of(values: list[float]) -> Tensor:
        return torch.tensor(values)[torch.randint(len(values), (num_rows,))]

    every = torch.full((num_rows,), vocabulary_size)
    if not is_filtered:
        return settings(
            one_of(TEMPERATURES), every, torch.full_like(every, ALL), torch.zeros(num_rows), vocabulary_size
        )
    top_ks = one_of([1, 2, 5, max(1, vocabulary_size // 2), vocabulary_size - 1, vocabulary_size]).clamp(min=1)
    return settings(one_of(TEMPERATURES[1:]), top_ks.long(), one_of(TOP_PS).long(), one_of(MIN_PS), vocabulary_size)


def random_logits(num_rows: int, vocabulary_size: int) -> Tensor:
    """Some rows have many ties, some many impossible ids."""
    logits = torch.randn(num_rows, vocabulary_size) * 4
    logits[1::3] = logits[1::3].round()
    logits[2::3] = logits[2::3].masked_fill(torch.rand(logits[2::3].shape) < 0.6, -torch.inf)
    return logits


def on_device(rows: SamplingRows) -> SamplingRows:
    return replace(
        rows,
        scales=rows.scales.to(DEVICE),
        top_ks=rows.top_ks.to(DEVICE),
        top_ps=rows.top_ps.to(DEVICE),
        min_scores=rows.min_scores.to(DEVICE),
        draws=rows.draws.to(DEVICE),
    )


def check(logits: Tensor, rows: SamplingRows, cores: object = CORES) -> None:
    got = choose(logits.clone().to(DEVICE), on_device(rows), cores)
    assert got.dtype == torch.int32
    assert got.tolist() == ops.choose(logits.clone(), rows).tolist()


# More of them where there is time for it.
@pytest.mark.parametrize("num_rows", [40, pytest.param(1000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("vocabulary_size", [1, 2, 33, 64])
def test_rows_without_filters(vocabulary_size: int, num_rows: int) -> None:
    torch.manual_seed(vocabulary_size)
    check(random_logits(num_rows, vocabulary_size), random_settings(num_rows, vocabulary_size, False))


@pytest.mark.parametrize("num_rows", [20, pytest.param(250, marks=pytest.mark.slow)])
@pytest.mark.parametrize("vocabulary_size", [1, 2, 5, 33, 64])
def test_filtered_rows(vocabulary_size: int, num_rows: int) -> None:
    torch.manual_seed(vocabulary_size)
    check(random_logits(num_rows, vocabulary_size), random_settings(num_rows, vocabulary_size, True))


@pytest.mark.parametrize("vocabulary_size", [1024, 1025, 3000])
@pytest.mark.parametrize("is_filtered", [False, True])
def test_several_tiles(vocabulary_size: int, is_filtered: bool) -> None:
    torch.manual_seed(vocabulary_size)
    num_rows = 4 if is_filtered else 16
    check(random_logits(num_rows, vocabulary_size), random_settings(num_rows, vocabulary_size, is_filtered))


def test_of_equal_logits_the_first_is_taken_across_tiles() -> None:
    rows = settings(torch.zeros(1), torch.tensor([2100]), torch.tensor([ALL]), torch.zeros(1), 2100)
    logits = torch.zeros(1, 2100)
    logits[0, [5 + 1024, 7, 5]] = 1
    assert choose(logits.to(DEVICE), on_device(rows), CORES).tolist() == [5]
    check(logits, rows)


def test_one_bit_in_each_pass_where_memory_is_short() -> None:
    torch.manual_seed(0)
    cores = replace(CORES, tile_bytes=2 * 4 * 4 * 64)
    check(random_logits(3, 50), random_settings(3, 50, True), cores)


@pytest.mark.parametrize("draw", [0, ALL - 1])
def test_the_first_and_the_last_draw(draw: int) -> None:
    torch.manual_seed(draw)
    for is_filtered in (False, True):
        rows = random_settings(8, 40, is_filtered)
        check(random_logits(8, 40), replace(rows, draws=torch.full_like(rows.draws, draw)))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_possible_id(temperature: float) -> None:
    rows = settings(torch.tensor([temperature]), torch.tensor([3]), torch.tensor([ALL]), torch.zeros(1), 40)
    logits = torch.full((1, 40), -torch.inf)
    check(logits, rows)
    assert ops.choose(logits, rows).tolist() == [-2]


@pytest.mark.parametrize("broken", [float("nan"), float("inf")])
def test_a_row_without_a_law_ends_and_leaves_its_neighbours_alone(broken: float) -> None:
    torch.manual_seed(7)
    logits = torch.randn(4, 1500)
    rows = settings(
        torch.tensor([0.0, 1.0, 1.0, 1.0]),
        torch.tensor([1500, 1500, 9, 1500]),
        torch.tensor([ALL, ALL, ALL // 2, ALL // 2]),
        torch.zeros(4),
        1500,
    )
    expected = ops.choose(logits.clone(), rows).tolist()
    for r in range(4):
        spoiled = logits.clone()
        spoiled[r, 77] = broken
        found = choose(spoiled.to(DEVICE), on_device(rows), CORES).tolist()
        assert found[:r] + found[r + 1 :] == expected[:r] + expected[r + 1 :]
        assert found[r] < 1500


def test_a_row_chooses_alike_in_any_company() -> None:
    torch.manual_seed(0)
    logits, rows = random_logits(6, 40), random_settings(6, 40, True)
    together = choose(logits.to(DEVICE), on_device(rows), CORES).tolist()
    for r in range(6):
        alone = SamplingRows(
            rows.scales[r : r + 1],
            rows.top_ks[r : r + 1],
            rows.top_ps[r : r + 1],
            rows.min_scores[r : r + 1],
            rows.draws[:, r : r + 1],
            (),
            (),
            (0,),
            rows.max_top_k,
        )
        assert choose(logits[r : r + 1].to(DEVICE), on_device(alone), CORES).tolist() == together[r : r + 1]
