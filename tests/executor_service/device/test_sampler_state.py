# SPDX-License-Identifier: Apache-2.0
"""Penalties and biases, against a plain count; slots that change hands."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from executor_service.device.sampler_state import SamplerState, state_arrays
from executor_service.scheduling.sequence import Sampling
from executor_service.scheduling.step import StepRow
from tests.fixtures.sampling_rows import CPU, adjusted, sampling_row

SIZE = 40
ALL = Sampling(repetition_penalty=1.4, presence_penalty=0.7, frequency_penalty=0.3, logit_bias=((3, 2.5), (11, -1.0)))
SETTINGS = [
    ALL,
    Sampling(repetition_penalty=0.6),
    Sampling(presence_penalty=-1.5),
    Sampling(frequency_penalty=1.9),
    Sampling(logit_bias=((0, 100.0), (39, -100.0))),
    Sampling(allowed_token_ids=(1, 2, 39), logit_bias=((2, 1.0), (5, 90.0))),
]


def logits_of_rows(num_rows: int) -> torch.Tensor:
    return torch.randn(num_rows, SIZE, generator=torch.Generator().manual_seed(3))


def new_state(num_slots: int = 6) -> SamplerState:
    return SamplerState(num_slots, SIZE, CPU)


def sent(rows: Sequence[StepRow]) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(array) for name, array in state_arrays(rows).items()}


def begin(state: SamplerState, sampling: Sampling, slot: int, prompt: Sequence[int], output: Sequence[int]) -> None:
    state.begin(sent([sampling_row(sampling, slot=slot, prompt=prompt, output=output)]))


def adjust(state: SamplerState, logits: torch.Tensor, slots: list[int], samplings: list[Sampling]) -> torch.Tensor:
    rows = [sampling_row(sampling, slot=slot) for slot, sampling in zip(slots, samplings, strict=True)]
    logits = logits.clone()
    state.adjust(logits, sent(rows), samplings)
    return logits


def test_rows_of_all_settings_follow_a_plain_count() -> None:
    """In one batch; an id of the prompt alone is repeated, but neither frequent nor present."""
    logits, state = logits_of_rows(len(SETTINGS)), new_state()
    prompt, output = [1, 2, 2, 3], [2, 7, 7, 7, 11]
    slots = [5, 0, 3, 1, 2, 4]
    state.begin(
        sent(
            [sampling_row(s, slot=slot, prompt=prompt, output=output) for s, slot in zip(SETTINGS, slots, strict=True)]
        )
    )
    found = adjust(state, logits, slots, SETTINGS)
    expected = [adjusted(row.tolist(), s, prompt, output) for row, s in zip(logits, SETTINGS, strict=True)]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_a_row_has_the_same_bits_without_its_neighbours() -> None:
    logits, state = logits_of_rows(len(SETTINGS)), new_state()
    for slot, sampling in enumerate(SETTINGS):
        begin(state, sampling, slot, [1, 2], [2, 7, 7])
    together = adjust(state, logits, list(range(len(SETTINGS))), SETTINGS)
    for slot, sampling in enumerate(SETTINGS):
        assert torch.equal(adjust(state, logits[slot : slot + 1], [slot], [sampling])[0], together[slot])


def test_ids_sampled_here_count_as_those_that_are_sent() -> None:
    """After a preemption the history comes again, and holds what was counted here."""
    counted, other = new_state(), new_state()
    begin(counted, ALL, 0, [1, 2], [])
    for token_id in (7, 2, 7):
        counted.count(torch.tensor([token_id], dtype=torch.int32), sent([sampling_row(ALL, slot=0)]))
    begin(other, ALL, 3, [1, 2], [7, 2, 7])
    logits = logits_of_rows(1)
    assert torch.equal(adjust(counted, logits, [0], [ALL]), adjust(other, logits, [3], [ALL]))
    begin(counted, ALL, 0, [1, 2], [7, 2, 7])
    assert torch.equal(adjust(counted, logits, [0], [ALL]), adjust(other, logits, [3], [ALL]))


def test_a_slot_s_next_owner_finds_nothing_of_the_last() -> None:
    logits, state = logits_of_rows(1), new_state()
    for sampling in SETTINGS:
        begin(state, sampling, 0, [1, 2, 3], [4, 5])
    mild = Sampling(frequency_penalty=0.5, repetition_penalty=1.1, logit_bias=((30, 1.0),))
    begin(state, mild, 0, [8], [9])
    torch.testing.assert_close(
        adjust(state, logits, [0], [mild])[0], torch.tensor(adjusted(logits[0].tolist(), mild, [8], [9]))
    )


def test_rows_without_state_are_left_alone() -> None:
    logits, state = logits_of_rows(3), new_state()
    begin(state, ALL, 1, [1], [2])
    rows = [sampling_row(Sampling(1.0), slot=0), sampling_row(ALL, slot=1), sampling_row(Sampling(), slot=2)]
    found = logits.clone()
    state.adjust(found, sent(rows), [ALL])
    assert torch.equal(found[::2], logits[::2])
    assert torch.equal(found[1:2], adjust(state, logits[1:2], [1], [ALL]))


def test_biases_add_up_and_reach_no_id_that_is_not_allowed() -> None:
    state = new_state()
    begin(state, Sampling(logit_bias=((3, 1.0), (3, 0.5)), banned_token_ids=(4,)), 0, [], [])
    begin(state, Sampling(logit_bias=((3, 1.0), (4, 0.5)), allowed_token_ids=(4,)), 1, [], [])
    assert state.bias[0, 2:5].tolist() == [0.0, 1.5, -torch.inf]
    assert state.bias[1, 2:5].tolist() == [-torch.inf, -torch.inf, 0.5]
