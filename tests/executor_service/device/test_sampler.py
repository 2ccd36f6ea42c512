# SPDX-License-Identifier: Apache-2.0
"""What a row's settings mean together, which rows have no id, and that neighbours do not matter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from executor_service.device import sampler as sampler_module
from executor_service.device.sampler import failure_of
from executor_service.device.transfer import upload
from executor_service.scheduling.sequence import Sampling
from executor_service.scheduling.step import Failure, Limits, StepRow
from tests.fixtures.sampling_rows import adjusted, law_of, mask_of, new_sampler, rows_of, sample_once, sampling_row

SETTINGS = [
    Sampling(),
    Sampling(0.8, seed=1),
    Sampling(1.2, top_k=7, seed=2**64 - 1),
    Sampling(1.0, top_p=0.5, seed=3, choice_index=2),
    Sampling(0.9, top_k=40, top_p=0.9, seed=4),
    Sampling(1.5, min_p=0.02, seed=5),
    Sampling(0.7, top_k=2000, top_p=0.8, seed=6),
    Sampling(repetition_penalty=1.3),
    Sampling(1.1, presence_penalty=0.5, frequency_penalty=-0.3, seed=7),
    Sampling(1.0, logit_bias=((3, 5.0), (4, -100.0)), seed=8),
    Sampling(1.0, allowed_token_ids=tuple(range(0, 300, 3)), seed=9),
]
LIMITS = [None, Limits(banned=(1, 2, 3)), Limits(mask=mask_of(range(0, 300, 2), 320))]


def random_logits(num_rows: int, vocabulary_size: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(num_rows, vocabulary_size, generator=torch.Generator().manual_seed(seed))


def mixed_rows(count: int) -> list[StepRow]:
    """Settings in turn; rows with state bring a history."""
    rows = []
    for r in range(count):
        sampling = SETTINGS[r % len(SETTINGS)]
        history = {"prompt": [r, 5, 6], "output": [7, 7, r]} if sampling.has_state else {}
        rows.append(sampling_row(sampling, 3 * r, r, **history))
    return rows


@pytest.mark.parametrize(("num_rows", "size"), [(2, 320), (40, 320), (12, 49152)])
def test_a_row_gets_the_same_id_in_any_company(num_rows: int, size: int) -> None:
    """Alone, in a batch, in another order and so another slot, on one thread or two."""
    logits, rows = random_logits(num_rows, size), mixed_rows(num_rows)
    limits = [LIMITS[r // 2 % 3] if size == 320 else None for r in range(num_rows)]
    together = sample_once(logits, rows, limits)
    num_threads = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            alone = [sample_once(logits[r : r + 1], [rows[r]], [limits[r]])[0] for r in range(num_rows)]
            assert alone == together
            moved = [replace(row, slot=num_rows - 1 - row.slot) for row in rows]
            assert sample_once(logits.flip(0), moved[::-1], limits[::-1])[::-1] == together
    finally:
        torch.set_num_threads(num_threads)


@pytest.mark.parametrize("sampling", SETTINGS)
@pytest.mark.parametrize("limits", LIMITS, ids=["free", "banned", "masked"])
def test_only_ids_that_the_rules_leave_are_chosen(sampling: Sampling, limits: Limits | None) -> None:
    """All rules in their order, against a plain list: what has no probability is never drawn, what has much is."""
    logits, prompt, output = random_logits(1, 320, seed=7), [5, 6, 9], [7, 7, 8, 300]
    rows = [
        sampling_row(sampling, position, position, prompt if sampling.has_state else None, output)
        for position in range(400)
    ]
    chosen = set(sample_once(logits.expand(400, -1), rows, [limits] * 400))
    values = adjusted(logits[0].tolist(), sampling, prompt, output, limits)
    if sampling.is_greedy:
        assert chosen == {int(np.argmax(values))}
    else:
        law = law_of(values, sampling)
        assert chosen <= set(np.flatnonzero(law).tolist())
        assert chosen >= set(np.flatnonzero(law > 0.05).tolist())


def test_what_is_not_allowed_is_not_chosen_at_any_temperature() -> None:
    logits = torch.zeros(300, 320)
    logits[:, [3, 7]] = 50.0
    hot = Sampling(temperature=1e6)
    banned = Limits(banned=(3, 7))
    masked = Limits(mask=mask_of([5, 31, 32, 319], 320))
    both = Limits(banned=(5, 32), mask=mask_of([5, 31, 32, 319], 320))
    rows = [sampling_row(hot, position) for position in range(300)]
    assert not {3, 7} & set(sample_once(logits, rows, [banned] * 300))
    assert set(sample_once(logits, rows, [masked] * 300)) == {5, 31, 32, 319}
    assert set(sample_once(logits, rows, [both] * 300)) == {31, 319}


def test_seeds_repeat_in_another_sampler_batch_and_place() -> None:
    logits = random_logits(1, 320).expand(30, -1)
    rows = [sampling_row(Sampling(1.0, seed=7, choice_index=r % 3), position=r // 3) for r in range(30)]
    first = sample_once(logits, rows)
    assert sample_once(logits, rows[::-1])[::-1] == first
    assert len(set(first)) > 5


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.nan])
@pytest.mark.parametrize("size", [320, 4096])
def test_a_row_without_finite_logits_fails_alone(broken: float, size: int) -> None:
    logits, rows = random_logits(33, size), mixed_rows(33)
    free: list[Limits | None] = [None] * 33
    healthy = sample_once(logits, rows, free)
    for r in range(0, 33, 2):
        logits[r, (37 * r) % size] = broken
    found = sample_once(logits, rows, free)
    assert [failure_of(token_id) for token_id in found[::2]] == [Failure.NOT_FINITE] * 17
    assert found[1::2] == healthy[1::2]
    assert not any(failure_of(token_id) for token_id in healthy)


def test_logits_of_minus_infinity_fail_only_where_all_are() -> None:
    logits = torch.full((2, 320), -math.inf)
    logits[1, 9] = 0.0
    found = sample_once(logits, [sampling_row(Sampling(1.0))] * 2)
    assert failure_of(found[0]) is Failure.NOT_FINITE
    assert found[1] == 9


def test_a_row_that_nothing_is_left_to_fails_alone() -> None:
    logits, samplings = random_logits(3, 320), [Sampling(), Sampling(1.0, top_p=0.9), Sampling(1.0, top_k=5)]
    rows = [sampling_row(sampling) for sampling in samplings]
    for r in range(3):
        limits: list[Limits | None] = [None] * 3
        limits[r] = Limits(banned=(1, 33), mask=mask_of([1, 33], 320))
        found = sample_once(logits, rows, limits)
        assert failure_of(found[r]) is Failure.NOTHING_ALLOWED
        assert found[:r] + found[r + 1 :] == [t for i, t in enumerate(sample_once(logits, rows)) if i != r]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_tiny_temperatures_are_greedy(dtype: torch.dtype) -> None:
    """B24: for logits that a float16 model gives too, its largest among them, equal ones included."""
    logits = random_logits(50, 320).to(dtype).float()
    logits[:25] *= 65504 / logits.abs().max()
    logits[::5, 7] = logits[::5].amax(dim=-1)
    greedy = logits.argmax(dim=-1).tolist()
    for temperature in (0.0, 1e-9, 1e-6, 1e-5, 1e-4, 1e-3):
        rows = [sampling_row(Sampling(temperature), position) for position in range(len(logits))]
        assert sample_once(logits, rows) == greedy


def test_greedy_takes_the_lowest_of_equal_ids() -> None:
    logits = torch.zeros(3, 49152)
    logits[1, 40_000] = logits[1, 17] = 1.0
    logits[2, 49_151] = 1.0
    assert sample_once(logits, [sampling_row(Sampling())] * 3) == [0, 17, 49_151]


def test_a_tiny_top_p_is_greedy_where_ids_tie_too() -> None:
    """B27. min_p = 1 and others keep what ties with the last."""
    logits = torch.zeros(50, 320)
    for top_p in (0.0, 1e-9):
        rows = [sampling_row(Sampling(1.0, top_p=top_p), position) for position in range(50)]
        assert sample_once(logits, rows) == [0] * 50
    assert len(set(sample_once(logits, [sampling_row(Sampling(1.0, min_p=1.0), p) for p in range(50)]))) > 20


def test_logits_at_the_end_of_the_range_are_no_failure() -> None:
    logits = torch.tensor([[3.4e38, -3.4e38, 0.0]])
    penalty = Sampling(1.0, repetition_penalty=1e-30)
    assert sample_once(logits, [sampling_row(Sampling(2e-3, top_p=0.9))]) == [0]
    assert sample_once(logits, [sampling_row(penalty, slot=0, prompt=[0, 1])]) == [0]


def test_rows_in_steps_count_what_they_sampled() -> None:
    """A penalty that forbids what the output has: ids come in the order of their logits, in two rows at once."""
    logits = torch.stack([torch.arange(8.0), -torch.arange(8.0)])
    sampling = Sampling(frequency_penalty=2.0, presence_penalty=2.0)
    sampler = new_sampler(vocabulary_size=8, num_slots=2)
    output: list[list[int]] = []
    for step in range(6):
        histories = [[], []] if step == 0 else [None, None]
        rows = [sampling_row(sampling, step, slot, prompt) for slot, prompt in enumerate(histories)]
        output.append(sampler.sample(logits.clone(), rows, [None, None]).tolist())
    for r in range(2):
        expected: list[int] = []
        for _ in range(6):
            expected.append(int(np.argmax(adjusted(logits[r].tolist(), sampling, [], expected))))
        assert [ids[r] for ids in output] == expected


def test_a_step_s_numbers_go_down_in_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of words, at most 9 a row that has neither state nor limits; a row's mask is as many words as its bits need."""
    sent: list[int] = []

    def counted(arrays: Sequence[npt.NDArray[Any]], device: torch.device) -> list[torch.Tensor]:
        sent.append(sum(array.nbytes for array in arrays))
        return upload(arrays, device)

    monkeypatch.setattr(sampler_module, "upload", counted)
    logits = random_logits(40, 320)
    sample_once(logits, [sampling_row(SETTINGS[r % 7], r) for r in range(40)])
    assert len(sent) == 1
    assert sent[0] <= 40 * 36
    sample_once(logits, mixed_rows(40), [LIMITS[r % 3] for r in range(40)])
    assert len(sent) == 2
    assert sent[1] < 40 * 300


def test_settings_become_numbers_that_every_device_reads_alike() -> None:
    rows = rows_of(
        [Sampling(), Sampling(0.5), Sampling(2.0, top_k=7, top_p=1e-6, min_p=0.25), Sampling(1.0, top_k=500, top_p=2)],
        vocabulary_size=320,
    )
    assert rows.scales.tolist() == [0.0, *np.float32([2 * math.log2(math.e), math.log2(math.e) / 2, math.log2(math.e)])]
    assert rows.top_ks.tolist() == [320, 320, 7, 320]
    assert rows.top_ps.tolist() == [2**30, 2**30, math.ceil(1e-6 * 2**30), 2**30]
    assert rows.min_scores.tolist() == [-math.inf, -math.inf, -2.0, -math.inf]
    assert (rows.greedy, rows.plain, rows.filtered, rows.max_top_k) == ((0,), (1, 3), (2,), 7)
    assert not rows.are_topped


def test_state_takes_what_it_says_from_the_start() -> None:
    """9 bytes an id of a slot, whatever rows come."""
    sampler = new_sampler(vocabulary_size=8, num_slots=3)
    assert sampler.num_bytes == 3 * 8 * 9
    sampler.sample(torch.zeros(1, 8), [sampling_row(SETTINGS[7], slot=2, prompt=[1])], [None])
    assert sampler.num_bytes == 3 * 8 * 9
