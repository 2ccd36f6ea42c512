# SPDX-License-Identifier: Apache-2.0
"""Steps through the runner: ids that stay on the device, failures, scores of outputs and prompts, the warm-up."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from executor_service.device import runner as runner_module
from executor_service.device.runner import Capacity, DeviceRunner
from executor_service.models.forward_batch import ForwardBatch, KvCache
from executor_service.scheduling.cache_group import CacheGroup
from executor_service.scheduling.sequence import RowKey, Sampling
from executor_service.scheduling.step import Failure, History, NewBlocks, Sampled, Scores, Step, StepRow
from kernels import reference
from tests.fixtures.decoding import load_decoder, logits_of
from tests.fixtures.random_model import write_random_model
from tests.fixtures.sampling_rows import CPU, adjusted

SIZE = 40
BLOCK = 16
BROKEN = 13


class TableModel:
    """Logits depend on the last id alone: a row of a table. What it passes on to them is the id."""

    cache_groups = (CacheGroup(None, 1), CacheGroup(8, 2))
    vocabulary_size = SIZE

    def __init__(self) -> None:
        self.table = 3 * torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(0))
        self.table[BROKEN, 5] = math.nan
        self.num_slots: list[int] = []
        self.num_scored: list[int] = []
        self.token_ids: list[list[int]] = []

    def forward(self, batch: ForwardBatch, cache: KvCache) -> torch.Tensor:
        for group, num_slots in zip(batch.groups, self.num_slots, strict=True):
            assert all(0 <= slot < num_slots for slot in group.slots.tolist())
        self.token_ids.append(batch.token_ids.tolist())
        return batch.token_ids[batch.logit_rows]

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        self.num_scored.append(len(x))
        return self.table[x.long()]

    def new_cache(self, num_blocks: Sequence[int], block_tokens: int, device: torch.device) -> KvCache:
        self.num_slots = [count * block_tokens for count in num_blocks]
        return []

    def logprobs(self, token_ids: Sequence[int]) -> torch.Tensor:
        return self.table[list(token_ids)].log_softmax(dim=-1)


def make_runner(num_blocks: Sequence[int] = (32, 16)) -> tuple[DeviceRunner, TableModel]:
    model = TableModel()
    runner = DeviceRunner(model, reference, Capacity(BLOCK, 16, BLOCK * max(num_blocks)), CPU)
    runner.allocate(num_blocks)
    return runner, model


def make_row(token_ids: Sequence[int] | None, sampling: Sampling | None = Sampling(), **fields: Any) -> StepRow:  # noqa: B008
    """Of two cache groups. token_ids None: the one that was sampled first before."""
    num_tokens = 1 if token_ids is None else len(token_ids)
    values = {
        "key": RowKey(1, 1),
        "first_position": 0,
        "num_tokens": num_tokens,
        "token_ids": None if token_ids is None else np.array(token_ids, np.int32),
        "sample_index": 0,
        "slot": 0,
        "new_blocks": tuple(NewBlocks(0, list(range(-(-num_tokens // BLOCK)))) for _ in range(2)),
        "sampling": sampling,
        "output_position": 0,
    }
    if (targets := fields.get("prompt_targets")) is not None:
        fields["prompt_targets"] = np.array(targets, np.int32)
    return StepRow(**(values | fields))


def in_slots(rows: list[StepRow]) -> list[StepRow]:
    """Each in a slot of its own."""
    return [dataclasses.replace(row, slot=slot) for slot, row in enumerate(rows)]


def run(runner: DeviceRunner, rows: list[StepRow]) -> Sampled:
    launched = runner.forward(Step(1, in_slots(rows)))
    runner.sample(launched, [None] * sum(row.sampling is not None for row in rows))
    return runner.sampled(launched)


def assert_scores(scores: Scores | None, law: torch.Tensor, token_ids: Sequence[int], num_top: int) -> None:
    """law: log probabilities [k, V]."""
    assert scores is not None
    assert (scores.logprobs.dtype, scores.top_token_ids.dtype, scores.top_logprobs.dtype) == ("f4", "i4", "f4")
    assert np.allclose(scores.logprobs, law[range(len(token_ids)), list(token_ids)], rtol=0, atol=1e-5)
    top = law.topk(num_top)
    assert scores.top_token_ids.tolist() == top.indices.tolist()
    assert np.allclose(scores.top_logprobs, top.values, rtol=0, atol=1e-5)


def test_sampled_ids_feed_the_next_step_before_the_host_has_them() -> None:
    runner, model = make_runner()
    first = runner.forward(Step(1, in_slots([make_row([3, 4]), make_row([9, 1], None), make_row([7])])))
    runner.sample(first, [None, None])
    rows = [make_row(None, sample_index=1), make_row([2]), make_row(None, sample_index=0)]
    second = runner.forward(Step(2, in_slots(rows)))
    runner.sample(second, [None] * 3)
    token_ids = runner.sampled(first).token_ids
    assert token_ids == model.table[[4, 7]].argmax(dim=-1).tolist()
    assert model.token_ids[1] == [token_ids[1], 2, token_ids[0]]
    assert runner.sampled(second).token_ids == model.table[model.token_ids[1]].argmax(dim=-1).tolist()


def test_a_broken_row_fails_alone_and_feeds_an_id_that_exists() -> None:
    runner, model = make_runner()
    sampled = run(runner, [make_row([4]), make_row([BROKEN], Sampling(1.0, top_p=0.9)), make_row([7])])
    assert sampled.failures == [None, Failure.NOT_FINITE, None]
    assert [sampled.token_ids[i] for i in (0, 2)] == model.table[[4, 7]].argmax(dim=-1).tolist()
    run(runner, [make_row(None, sample_index=1)])
    assert model.token_ids[-1] == [0]


def test_rows_have_the_scores_that_they_ask_for() -> None:
    """B30: of the raw law whatever the temperature; the chosen id's even where it is none of the most likely."""
    runner, model = make_runner()
    samplings = [Sampling(5.0, seed=s, logprobs=n) for s, n in enumerate((2, None, 0, 20))]
    sampled = run(runner, [make_row([t], s) for t, s in zip((4, 5, 6, 7), samplings, strict=True)])
    assert sampled.scores[1] is None
    for i, token_id, num_top in ((0, 4, 2), (2, 6, 0), (3, 7, 20)):
        assert_scores(sampled.scores[i], model.logprobs([token_id]), sampled.token_ids[i : i + 1], num_top)


def test_scores_are_of_the_raw_logits_under_penalties_and_bans() -> None:
    runner, model = make_runner()
    sampling = Sampling(repetition_penalty=1.5, logit_bias=((2, 50.0),), logprobs=3)
    row = make_row([4], sampling, slot=0, history=History(np.array([4], np.int32), 1))
    sampled = run(runner, [row])
    assert sampled.token_ids == [2]
    assert_scores(sampled.scores[0], model.logprobs([4]), [2], 3)


def test_penalties_follow_the_output_over_steps_that_overlap() -> None:
    runner, model = make_runner()
    sampling = Sampling(frequency_penalty=1.0, presence_penalty=0.5, repetition_penalty=1.2)
    history = History(np.array([1, 2, 1], np.int32), 2)
    rows = [make_row([1], sampling, slot=3, history=history)] + [make_row(None, sampling, slot=3)] * 7
    launches = []
    for number, row in enumerate(rows):
        launches.append(runner.forward(Step(number, [row])))
        runner.sample(launches[-1], [None])
    output = [1]
    for launched in launches:
        values = adjusted(model.table[output[-1]].tolist(), sampling, [1, 2], output)
        output.append(int(np.argmax(values)))
        assert runner.sampled(launched).token_ids == output[-1:]


@pytest.mark.parametrize("num_targets", [1, 63, 64, 65, 130])
def test_prompt_scores_are_the_law_s_whatever_the_slices(num_targets: int) -> None:
    runner, model = make_runner()
    token_ids = np.random.default_rng(0).integers(0, 12, num_targets + 1).tolist()
    row = make_row(token_ids, Sampling(), prompt_targets=token_ids[1:], num_prompt_top=4)
    sampled = run(runner, [row])
    assert_scores(sampled.prompt_scores[0], model.logprobs(token_ids[:-1]), token_ids[1:], 4)
    assert max(model.num_scored) <= 64


def test_prompt_scores_of_several_rows_keep_apart() -> None:
    """Beside rows that sample, in a step where not all do; a row may want scores of no id."""
    runner, model = make_runner()
    rows = [
        make_row([1, 2, 3], None, prompt_targets=[2, 3, 9], num_prompt_top=2),
        make_row([4, 5], Sampling(logprobs=1)),
        make_row([6], Sampling(), prompt_targets=[], num_prompt_top=5),
        make_row([7, 8, 9], Sampling(), prompt_targets=[8], num_prompt_top=0),
    ]
    sampled = run(runner, rows)
    assert sampled.token_ids == model.table[[5, 6, 9]].argmax(dim=-1).tolist()
    assert_scores(sampled.scores[0], model.logprobs([5]), sampled.token_ids[:1], 1)
    first, none, last = sampled.prompt_scores
    assert_scores(first, model.logprobs([1, 2, 3]), [2, 3, 9], 2)
    assert len(none.logprobs) == 0
    assert_scores(last, model.logprobs([7]), [8], 0)


def test_a_step_may_sample_nothing_and_score_nothing() -> None:
    runner, model = make_runner()
    assert run(runner, [make_row([1, 2], None)]) == Sampled([], [], [], [])
    assert run(runner, [make_row([1], None, prompt_targets=[])]).prompt_scores[0].logprobs.shape == (0,)
    assert model.num_scored == []


def test_warm_up_stays_inside_every_cache_group() -> None:
    runner, model = make_runner(num_blocks=(5, 2))
    runner.warm_up(100)
    assert [len(token_ids) for token_ids in model.token_ids] == [1, 2, 4, 8, 16, 32]


def test_the_largest_step_has_all_tokens_and_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner_module, "peak_bytes", lambda device, work: work() or 77)
    runner, model = make_runner()
    logits, sampled = model.logits, []
    model.logits = lambda x: sampled.append(len(x)) or logits(x)  # type: ignore[method-assign, func-returns-value]
    assert runner.try_largest_step(100) == 77
    assert [len(token_ids) for token_ids in model.token_ids] == [100]
    assert sampled[0] == 16
    assert (runner.num_blocks, runner.cache) == ((), [])


def test_warm_up_leaves_nothing_to_a_slot_s_first_owner() -> None:
    runner, model = make_runner()
    runner.warm_up(16)
    sampling = Sampling(frequency_penalty=100.0)
    sampled = run(runner, [make_row([4], sampling, slot=0, history=History(np.array([4], np.int32), 1))])
    assert sampled.token_ids == [int(model.table[4].argmax())]


def test_a_model_s_prompt_scores_do_not_depend_on_chunks(tmp_path: Path) -> None:
    """Of a real decoder, to the bit; and equal to its own logits' law."""
    decoder = load_decoder(write_random_model(tmp_path))
    token_ids = np.random.default_rng(1).integers(0, 320, 101).tolist()

    def scored(lens: Sequence[int]) -> list[np.ndarray]:
        runner, parts, start = DeviceRunner(decoder, reference, Capacity(BLOCK, 4, 8 * BLOCK), CPU), [], 0
        runner.allocate([8])
        for length in lens:
            row = make_row(
                token_ids[start : start + length],
                None,
                first_position=start,
                new_blocks=(NewBlocks(0, list(range(7))),),
                prompt_targets=token_ids[start + 1 : start + 1 + length],
                num_prompt_top=3,
            )
            parts += run(runner, [row]).prompt_scores
            start += length
        fields = ("logprobs", "top_token_ids", "top_logprobs")
        return [np.concatenate([getattr(part, name) for part in parts]) for name in fields]

    whole = scored([100])
    for lens in ([64, 36], [1, 99], [37, 1, 62]):
        assert all(np.array_equal(a, b) for a, b in zip(scored(lens), whole, strict=True))
    law = logits_of(decoder, token_ids[:-1]).log_softmax(dim=-1)
    assert_scores(Scores(*whole), law, token_ids[1:], 3)
