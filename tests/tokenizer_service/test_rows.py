# SPDX-License-Identifier: Apache-2.0
"""What a row holds for a call that is slow to take it."""

from __future__ import annotations

import numpy as np
import pytest

from protos.errors import LimitReached, PackserveError
from protos.packserve.v1 import executor_pb2, sampling_pb2
from tests.fixtures.fake_executor import top_logprobs
from tokenizer_service.logprobs import Logprobs
from tokenizer_service.rows import MAX_TAKE_TOKENS, Arrivals, RowRequest, RowStream, RowUpdate


def new_row(arrivals: Arrivals | None = None, num_prompt_tokens: int = 1, known: int = 0, **sampling: int) -> RowStream:
    row = executor_pb2.Row(sampling=sampling_pb2.SamplingParameters(**sampling), num_output_known=known)
    request = RowRequest(np.ones(num_prompt_tokens + known, np.int32), row)
    return RowStream(1, request, arrivals or Arrivals(), 100_000, lambda _: None)


def logprobs(num_ids: int, num_top: int = 0) -> Logprobs:
    return Logprobs.from_wire(executor_pb2.RowLogprobs(**top_logprobs(num_ids, num_top)))


async def take_all(row: RowStream, arrivals: Arrivals) -> list[RowUpdate]:
    updates: list[RowUpdate] = []
    while not updates or updates[-1].outcome is None:
        assert await arrivals.next() == [row]
        updates.append(row.take())
    return updates


def test_ids_are_copied_so_that_no_message_stays() -> None:
    row, message = new_row(), np.arange(5, dtype=np.int32)
    row.feed(message[:2], 0, None)
    message[:] = 9
    assert row.take().token_ids.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("sampling", "limit"), [({"max_tokens": 3}, 3), ({"max_tokens": 2**31 - 1}, 100_000), ({}, 100_000)]
)
def test_more_ids_than_the_row_takes_are_refused_with_both_numbers(sampling: dict[str, int], limit: int) -> None:
    row = new_row(**sampling)
    row.feed(np.zeros(limit, np.int32), 0, None)
    with pytest.raises(LimitReached, match=f"sent {limit + 1} output tokens, the row takes {limit}"):
        row.feed(np.zeros(1, np.int32), limit, None)


def test_what_is_no_id_is_refused_before_it_is_text() -> None:
    with pytest.raises(PackserveError, match="output token id is -2, must be 0 or more"):
        new_row().feed(np.array([3, -2], np.int32), 0, None)


async def test_much_that_waits_is_taken_in_parts_and_the_outcome_with_the_last() -> None:
    arrivals = Arrivals()
    row = new_row(arrivals, logprobs=0)
    expected = np.arange(2 * MAX_TAKE_TOKENS + 1, dtype=np.int32)
    row.feed(expected, 0, logprobs(len(expected)))
    row.end(executor_pb2.Finished())
    updates = await take_all(row, arrivals)
    assert [len(update.token_ids) for update in updates] == [MAX_TAKE_TOKENS, MAX_TAKE_TOKENS, 1]
    assert np.array_equal(np.concatenate([update.token_ids for update in updates]), expected)
    assert [len(update.logprobs or ()) for update in updates] == [MAX_TAKE_TOKENS, MAX_TAKE_TOKENS, 1]


async def test_alternatives_count_as_ids_of_a_take() -> None:
    arrivals = Arrivals()
    row = new_row(arrivals, num_prompt_tokens=500, logprobs=20, prompt_logprobs=7)
    row.feed_prompt(logprobs(499, 7), 1)
    expected = np.arange(1000, dtype=np.int32)
    for first in range(0, 1000, 100):  # merged while nobody takes
        row.feed(expected[first : first + 100], first, logprobs(100, 20))
    row.end(executor_pb2.Finished())
    updates = await take_all(row, arrivals)
    assert np.array_equal(np.concatenate([update.token_ids for update in updates]), expected)
    assert sum(len(update.logprobs or ()) for update in updates) == 1000
    assert updates[0].prompt_logprobs is not None
    assert updates[0].prompt_logprobs.top_token_ids.shape == (499, 7)
    assert all(update.prompt_logprobs is None for update in updates[1:])
    for update in updates:
        scores = [each for each in (update.logprobs, update.prompt_logprobs) if each is not None]
        assert sum(len(each) * (1 + each.num_top) for each in scores) <= MAX_TAKE_TOKENS


def test_fewer_alternatives_than_asked_are_what_a_small_vocabulary_has() -> None:
    row = new_row(logprobs=20)
    row.feed(np.array([1], np.int32), 0, logprobs(1, 3))
    update = row.take()
    assert update.logprobs is not None
    assert update.logprobs.top_token_ids.tolist() == [[0, 1, 2]]


def test_known_output_has_brought_the_prompts_logprobs_before() -> None:
    row = new_row(num_prompt_tokens=5, known=2, prompt_logprobs=0)
    row.feed(np.array([1], np.int32), 2, None)
    assert row.take().token_ids.tolist() == [1]
    with pytest.raises(PackserveError, match="sent 4 logprobs, the row asked for none"):
        row.feed_prompt(logprobs(4), 1)


@pytest.mark.parametrize(
    ("asked", "sent", "words"),
    [
        ({}, (1, 0), "sent 1 logprobs for 2 tokens"),
        ({"logprobs": 0}, None, "sent 0 logprobs for 2 tokens"),
        ({"logprobs": 0}, (3, 0), "sent 3 logprobs for 2 tokens"),
        ({"logprobs": 2}, (2, 3), "sent 3 alternatives, the row asked for 2"),
    ],
)
def test_logprobs_that_were_not_asked_for_so_are_refused(
    asked: dict[str, int], sent: tuple[int, int] | None, words: str
) -> None:
    """A lying executor ends its row."""
    with pytest.raises(PackserveError, match=words):
        new_row(**asked).feed(np.array([1, 2], np.int32), 0, logprobs(*sent) if sent else None)


def test_number_of_alternatives_stays_what_it_was() -> None:
    row = new_row(logprobs=5)
    row.feed(np.array([1], np.int32), 0, logprobs(1, 5))
    with pytest.raises(PackserveError, match="sent 4 alternatives, the row asked for 5"):
        row.feed(np.array([1], np.int32), 1, logprobs(1, 4))


def test_alternative_that_is_no_id_is_refused() -> None:
    wrong = logprobs(1, 2)
    bad = Logprobs(wrong.logprobs, wrong.top_token_ids - 1, wrong.top_logprobs)
    with pytest.raises(PackserveError, match="a likely token id is -1, must be 0 or more"):
        new_row(logprobs=2).feed(np.array([1], np.int32), 0, bad)


@pytest.mark.parametrize(
    ("first", "num_ids", "words"),
    [(0, 4, "prompt position is 0, expected 1"), (1, 5, "scored 6 prompt tokens, the prompt has 5")],
)
def test_prompt_logprobs_of_other_positions_are_refused(first: int, num_ids: int, words: str) -> None:
    with pytest.raises(PackserveError, match=words):
        new_row(num_prompt_tokens=5, prompt_logprobs=0).feed_prompt(logprobs(num_ids), first)


def test_output_before_the_whole_prompt_is_scored_is_refused() -> None:
    row = new_row(num_prompt_tokens=5, prompt_logprobs=0)
    row.feed_prompt(logprobs(2), 1)
    with pytest.raises(PackserveError, match="output came after 3 of 5 prompt tokens were scored"):
        row.feed(np.array([1], np.int32), 0, None)
