# SPDX-License-Identifier: Apache-2.0
"""News leave a step at a time, merge when the reader is slow, and are bounded."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from executor_service.scheduling.sequence import RowKey
from executor_service.scheduling.step import PromptScores, RowOutput, Scores
from executor_service.wire.messages import OUTPUT_BYTES
from executor_service.wire.outbox import MAX_BYTES, MAX_STEPS, Outbox
from protos.errors import InvalidRequest, LimitReached


def news(token_id: int) -> list[RowOutput]:
    return [RowOutput(RowKey(1, 1), token_id)]


async def drain(outbox: Outbox) -> list[tuple[int, list[int | None]]]:
    outbox.close()
    return [(step[0], [o.token_id for o in step[1]]) async for step in outbox.steps() if step]


async def test_each_step_is_apart_while_the_reader_keeps_up() -> None:
    outbox = Outbox()
    for step in range(MAX_STEPS):
        outbox.put(step, news(step))
    assert await drain(outbox) == [(step, [step]) for step in range(MAX_STEPS)]


async def test_past_the_cap_steps_merge_and_nothing_is_lost() -> None:
    outbox = Outbox()
    for step in range(MAX_STEPS + 10):
        outbox.put(step, news(step))
    steps = await drain(outbox)
    assert len(steps) == 10
    assert [token_id for _, ids in steps for token_id in ids] == list(range(MAX_STEPS + 10))


async def test_full_outbox_keeps_nothing_and_says_so() -> None:
    outbox = Outbox()
    for step in range(2 + MAX_BYTES // (1000 * OUTPUT_BYTES)):
        outbox.put(step, news(step) * 1000)
    assert outbox.is_full
    with pytest.raises(LimitReached, match=str(MAX_BYTES)):
        await anext(outbox.steps())


async def test_words_of_errors_count() -> None:
    outbox = Outbox()
    refusal = [RowOutput(RowKey(1, 1), outcome=InvalidRequest("x" * 400))]
    for step in range(2 + MAX_BYTES // 400_000):
        outbox.put(step, refusal * 1000)
    assert outbox.is_full


async def test_numbers_of_logprobs_count() -> None:
    outbox = Outbox()
    top = np.zeros((1000, 20), np.int32)
    scores = Scores(np.zeros(1000, np.float32), top, top.astype(np.float32))
    for step in range(MAX_BYTES // 164_000 + 2):
        outbox.put(step, [RowOutput(RowKey(1, 1), prompt=PromptScores(1, scores))])
    assert outbox.is_full


async def test_what_comes_at_once_does_not_fill_it() -> None:
    outbox = Outbox()
    outbox.put(1, news(1) * (MAX_BYTES // OUTPUT_BYTES + 2))
    assert not outbox.is_full
    assert len(await drain(outbox)) == 1


async def test_error_comes_after_what_is_left() -> None:
    outbox = Outbox()
    outbox.put(1, news(1))
    outbox.close(InvalidRequest("why"))
    steps = outbox.steps()
    assert await anext(steps) == (1, news(1))
    with pytest.raises(InvalidRequest, match="why"):
        await anext(steps)


async def test_reader_is_woken_by_news() -> None:
    outbox = Outbox()
    reading = asyncio.create_task(anext(outbox.steps()))
    await asyncio.sleep(0)
    outbox.put(7, news(1))
    outbox.wake()
    assert await reading == (7, news(1))
