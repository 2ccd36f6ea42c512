# SPDX-License-Identifier: Apache-2.0
"""Rows come and go, ids join them in order, and blocks always come back."""

from __future__ import annotations

import numpy as np
import pytest

from executor_service.scheduling.scheduler import Scheduler
from executor_service.scheduling.sequence import RowKey, Sampling
from executor_service.scheduling.step import CANCELLED, Failure, Finish, FinishReason, Sampled
from protos.errors import DeadlineExceeded, InvalidRequest, LimitReached, ModelFailure, PackserveError, Unavailable
from tests.fixtures.engine_loop import EngineLoop
from tests.fixtures.sequences import CountingLaunch, CountingRunner, make_cache, make_sequence


def make_loop(
    num_blocks: int = 64, max_step_tokens: int = 32, max_sequences: int = 8, depth: int = 1, **runner: object
) -> EngineLoop:
    scheduler = Scheduler(make_cache(num_blocks), max_step_tokens, max_sequences)
    return EngineLoop(scheduler, CountingRunner(**runner), depth)  # type: ignore[arg-type]


class CountingGrammar:
    """Allows the next of its ids, then stop_token_id; complete after the last."""

    def __init__(self, token_ids: list[int], stop_token_id: int = 999, is_open: bool = False) -> None:
        self.left = list(token_ids)
        self.stop_token_id = stop_token_id
        self.is_open = is_open

    def accept(self, token_id: int) -> bool:
        return bool(self.left) and self.left.pop(0) == token_id

    def mask(self) -> np.ndarray:
        mask = np.zeros(32, np.uint32)
        token_id = self.left[0] if self.left else self.stop_token_id
        mask[token_id // 32] = 1 << token_id % 32
        return mask

    @property
    def is_complete(self) -> bool:
        return not self.left and not self.is_open


def test_prompt_is_cut_into_chunks_under_the_budget() -> None:
    loop = make_loop(max_step_tokens=10)
    loop.add(make_sequence(num_tokens=25, max_output_tokens=1))
    assert loop.run() == {1: [25]}
    rows = [row for step in loop.runner.steps for row in step.rows]
    assert [(row.first_position, row.num_tokens, bool(row.sampling)) for row in rows] == [
        (0, 10, False),
        (10, 10, False),
        (20, 5, True),
    ]


def test_stop_id_ends_the_row_and_is_its_last_id() -> None:
    loop = make_loop()
    loop.add(make_sequence(num_tokens=4, max_output_tokens=9, stop_token_ids=frozenset({5})))
    assert loop.run() == {1: [4, 5]}
    assert loop.results[RowKey(1, 1)].outcome == Finish(FinishReason.STOP, 5)


def test_known_output_counts_as_output() -> None:
    """A row that another executor began: positions go on, max_tokens counts what was delivered."""
    loop = make_loop()
    loop.add(make_sequence(num_tokens=6, num_prompt_tokens=4, max_output_tokens=4))
    assert loop.run() == {1: [6, 7]}
    assert loop.results[RowKey(1, 1)].outcome == Finish(FinishReason.LENGTH)


def test_preemption_changes_no_id() -> None:
    """B33: rows that outgrow the pool are computed again, and give what they give in a large one."""

    def outputs(num_blocks: int, depth: int) -> tuple[dict[int, list[int]], int]:
        loop = make_loop(num_blocks, depth=depth)
        loop.add(*(make_sequence(i, num_tokens=5 + i, max_output_tokens=40) for i in range(4)))
        return loop.run(), loop.scheduler.num_preemptions

    plenty, none = outputs(64, depth=1)
    assert none == 0
    assert {len(ids) for ids in plenty.values()} == {40}
    for depth in (1, 2):
        tight, some = outputs(14, depth)
        assert some > 0
        assert tight == plenty


@pytest.mark.parametrize("when", ["waiting", "mid chunk", "decoding"])
def test_cancel_frees_blocks_at_once(when: str) -> None:
    loop = make_loop(max_step_tokens=8)
    sequence = make_sequence(num_tokens=12)
    loop.add(sequence)
    for _ in range({"waiting": 0, "mid chunk": 1, "decoding": 2}[when]):
        loop.turn()
    loop.cancel(sequence.key)
    scheduler = loop.scheduler
    assert loop.results[sequence.key].outcome is CANCELLED
    assert (scheduler.num_used_blocks, len(scheduler.waiting), len(scheduler.running)) == (0, 0, 0)
    assert scheduler.end(sequence.key, CANCELLED) == []
    assert not scheduler.has_work


def test_cancelled_row_in_flight_keeps_blocks_and_slot_until_commit() -> None:
    loop = make_loop(depth=2, max_sequences=1)
    sequence = make_sequence()
    loop.add(sequence)
    loop.turn()
    loop.cancel(sequence.key)
    assert loop.scheduler.num_used_blocks == 1
    loop.add(make_sequence(2))
    assert loop.turn() is None  # the only slot is in use until the step is committed
    assert loop.run() == {1: [], 2: [4, 5, 6, 7]}


def test_expired_row_never_starts() -> None:
    loop = make_loop()
    loop.add(make_sequence(1, deadline_s=5.0), make_sequence(2, deadline_s=7.0))
    outcomes = [(o.key.request_id, type(o.outcome)) for o in loop.scheduler.expire(6.0)]
    assert outcomes == [(1, DeadlineExceeded)]
    step = loop.turn()
    assert step
    assert [row.key.request_id for row in step.rows] == [2]


def test_stream_end_cancels_only_its_rows() -> None:
    loop = make_loop()
    loop.add(make_sequence(1, stream_id=1), make_sequence(1, stream_id=2))
    loop.scheduler.cancel_stream(1)
    assert list(loop.scheduler.sequences) == [(2, 1)]


def test_failed_engine_ends_every_row_and_frees_all() -> None:
    loop = make_loop(depth=2)
    loop.add(make_sequence(1), make_sequence(2))
    loop.turn()
    loop.cancel(RowKey(1, 1))
    ended = loop.scheduler.fail_all(Unavailable("the engine has stopped"))
    assert [output.key for output in ended] == [(1, 2)]
    assert (loop.scheduler.num_used_blocks, loop.scheduler.has_work) == (0, False)


def test_figures_are_of_all_groups() -> None:
    scheduler = Scheduler(make_cache(8, windows=(None, 5)), 32, 8)
    EngineLoop(scheduler).add(make_sequence(num_tokens=16))
    step = scheduler.schedule()
    assert step
    assert (scheduler.num_blocks, scheduler.num_used_blocks, scheduler.num_free_blocks) == (16, 8, 8)
    assert scheduler.usage == 0.5


# ---- what was asked of the ids


def test_scores_belong_to_their_ids() -> None:
    loop = make_loop()
    loop.add(make_sequence(1, sampling=Sampling(logprobs=0, prompt_logprobs=1)), make_sequence(2))
    step = loop.scheduler.schedule()
    assert step
    launched = loop.runner.forward(step)
    loop.runner.sample(launched, loop.scheduler.limits(step))
    first, second = loop.scheduler.commit(step, loop.runner.sampled(launched))
    assert first.scores
    assert first.prompt
    assert (first.token_id, first.scores.logprobs.tolist()) == (4, [-4.0])
    assert (first.prompt.first_position, first.prompt.scores.logprobs.tolist()) == (1, [-1.0, -2.0, -3.0])
    assert (second.scores, second.prompt) == (None, None)


def test_prompt_scores_come_with_the_chunk_that_made_them() -> None:
    loop = make_loop(max_step_tokens=4)
    sequence = make_sequence(num_tokens=10, sampling=Sampling(prompt_logprobs=0))
    loop.add(sequence)
    loop.turn()
    assert (loop.results[sequence.key].prompt_logprobs, loop.token_ids[1]) == ([-1, -2, -3, -4], [])
    loop.run()
    assert loop.results[sequence.key].prompt_logprobs == [-i for i in range(1, 10)]


def test_no_stop_id_is_chosen_before_min_tokens() -> None:
    loop = make_loop()
    loop.add(make_sequence(max_output_tokens=9, min_output_tokens=3, stop_token_ids=frozenset({5, 8})))
    assert loop.run() == {1: [4, 6, 7, 8]}


@pytest.mark.parametrize("depth", [1, 2])
def test_grammar_leads_and_ends_the_row(depth: int) -> None:
    loop = make_loop(depth=depth)
    loop.add(make_sequence(1, max_output_tokens=9, grammar=CountingGrammar([7, 9, 300])), make_sequence(2))
    assert loop.run() == {1: [7, 9, 300], 2: [4, 5, 6, 7]}
    assert loop.results[RowKey(1, 1)].outcome == Finish(FinishReason.STOP)


def test_grammar_that_may_end_ends_with_a_stop_id_that_it_never_sees() -> None:
    grammar = CountingGrammar([7], stop_token_id=12, is_open=True)
    loop = make_loop()
    loop.add(make_sequence(max_output_tokens=9, grammar=grammar, stop_token_ids=frozenset({12})))
    assert loop.run() == {1: [7, 12]}
    assert loop.results[RowKey(1, 1)].outcome == Finish(FinishReason.STOP, 12)


def test_grammar_that_refuses_what_it_allowed_is_our_own_mistake_and_ends_its_row_only() -> None:
    grammar = CountingGrammar([7, 8])
    grammar.accept = lambda token_id: False  # type: ignore[method-assign]
    loop = make_loop()
    loop.add(make_sequence(1, grammar=grammar), make_sequence(2))
    assert loop.run()[2] == [4, 5, 6, 7]
    outcome = loop.results[RowKey(1, 1)].outcome
    assert type(outcome) is PackserveError
    assert str(outcome) == "the constraint allowed id 7 at output position 0 and refused it"


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("method", ["mask", "accept"])
def test_grammar_that_can_not_go_on_ends_its_row_only(method: str, depth: int) -> None:
    """It met a bound of its library, in the middle of the output."""
    grammar = CountingGrammar([7, 8, 9])
    right = getattr(grammar, method)

    def limited(*token_id: int) -> object:
        if len(grammar.left) == 1:
            raise LimitReached("constraint: too many states")
        return right(*token_id)

    setattr(grammar, method, limited)
    loop = make_loop(depth=depth)
    loop.add(make_sequence(1, max_output_tokens=9, grammar=grammar), make_sequence(2))
    found = loop.run()
    assert found[2] == [4, 5, 6, 7]
    assert found[1] == ([7, 8] if method == "mask" else [7, 8, 9])
    assert str(loop.results[RowKey(1, 1)].outcome) == "constraint: too many states"
    assert loop.scheduler.num_used_blocks == 0


@pytest.mark.parametrize("depth", [1, 2])
def test_row_without_numbers_ends_alone_with_an_error(depth: int) -> None:
    """B57: a counter moves, neighbours are right."""
    loop = make_loop(depth=depth, failures={(1, 2): Failure.NOT_FINITE})
    loop.add(make_sequence(1), make_sequence(2))
    assert loop.run() == {1: [4, 5], 2: [4, 5, 6, 7]}
    outcome = loop.results[RowKey(1, 1)].outcome
    assert type(outcome) is ModelFailure
    assert str(outcome) == "the model's logits for output position 2 are not finite"
    assert loop.scheduler.num_failed_rows == 1


def test_prompt_scores_that_are_no_numbers_end_the_row() -> None:
    """They are not handed out; other rows go on."""
    loop = make_loop(max_step_tokens=8, failures={})
    scores_of_prompt = loop.runner.sampled

    def broken(launched: CountingLaunch) -> Sampled:
        sampled = scores_of_prompt(launched)
        for scores in sampled.prompt_scores:
            scores.logprobs[-1] = np.nan
        return sampled

    loop.runner.sampled = broken  # type: ignore[method-assign]
    loop.add(make_sequence(1, 20, sampling=Sampling(prompt_logprobs=0)), make_sequence(2))
    assert loop.run()[2] == [4, 5, 6, 7]
    result = loop.results[RowKey(1, 1)]
    assert type(result.outcome) is ModelFailure
    assert (result.token_ids, result.prompt_logprobs) == ([], [])
    assert loop.scheduler.num_failed_rows == 1


def test_row_that_may_choose_nothing_is_told_by_which_fields() -> None:
    loop = make_loop(failures={(1, 0): Failure.NOTHING_ALLOWED})
    sampling = Sampling(allowed_token_ids=(5,))
    loop.add(make_sequence(1, sampling=sampling, min_output_tokens=1, stop_token_ids=frozenset({5})))
    loop.run()
    outcome = loop.results[RowKey(1, 1)].outcome
    assert type(outcome) is InvalidRequest
    assert str(outcome) == "sampling: nothing is allowed at output position 0 by allowed_token_ids, min_tokens"
    assert loop.scheduler.num_failed_rows == 0
