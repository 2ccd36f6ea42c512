# SPDX-License-Identifier: Apache-2.0
"""Whatever comes and goes: each row ends once with the ids it has alone, reads only what is its own, and no block or
state slot is lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executor_service.scheduling.scheduler import Scheduler
from executor_service.scheduling.sequence import RowKey, Sampling, Sequence
from executor_service.scheduling.step import Cancelled, Finish
from tests.fixtures.checking_runner import CheckingRunner
from tests.fixtures.engine_loop import EngineLoop
from tests.fixtures.sequences import VOCABULARY, make_cache, make_sequence

BLOCK = 4
NUM_BLOCKS = 14
MAX_TOKENS = NUM_BLOCKS * BLOCK
WINDOWS = [(None,), (5,), (None, 5), (9, None, 1)]

prompts = st.builds(
    lambda prefix, tail: np.array([7] * prefix + tail, np.int32),
    st.integers(0, 30),
    st.lists(st.integers(0, 3), min_size=1, max_size=12),
)
samplings = st.builds(
    Sampling,
    presence_penalty=st.sampled_from([0.0, 0.0, 1.0]),
    prompt_logprobs=st.sampled_from([None, None, None, 0]),
)
rows = st.fixed_dictionaries(
    {
        "token_ids": prompts,
        "sampling": samplings,
        "max_output_tokens": st.integers(1, 14),
        "priority": st.sampled_from([0, 0, 0, 1, 2]),
        "cache_salt": st.sampled_from([b"", b"", b"salt"]),
        "stop_token_ids": st.sampled_from([frozenset[int](), frozenset({9}), frozenset({2, 12})]),
    }
)
actions = st.lists(
    st.one_of(rows, st.integers(1, 6).map(lambda n: ("turns", n)), st.integers(0, 20).map(lambda n: ("cancel", n))),
    max_size=40,
)


def expected(sequence: Sequence) -> list[int]:
    """Alone: it counts on from its last id to a stop id or its length."""
    last = int(sequence.token_ids[sequence.num_known - 1])
    ids: list[int] = []
    while len(ids) < sequence.max_output_tokens and not (ids and ids[-1] in sequence.stop_token_ids):
        ids.append((last + len(ids) + 1) % VOCABULARY)
    return ids


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("windows", WINDOWS, ids=str)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(actions=actions, max_step_tokens=st.sampled_from([1, 3, 8, 40]), max_sequences=st.sampled_from([1, 3, 8]))
def test_any_schedule_gives_each_row_what_it_has_alone(
    depth: int, windows: tuple[int | None, ...], actions: list[object], max_step_tokens: int, max_sequences: int
) -> None:
    cache = make_cache(NUM_BLOCKS, BLOCK, windows)
    runner = CheckingRunner(cache)
    loop = EngineLoop(Scheduler(cache, max_step_tokens, max_sequences), runner, depth)
    sequences: list[Sequence] = []
    alone: list[list[int]] = []
    for action in actions:
        match action:
            case dict():
                sequence = make_sequence(len(sequences), **action)
                sequences.append(sequence)
                alone.append(expected(sequence))
                runner.expect(sequence)
                loop.add(sequence)
            case ("turns", int(number)):
                for _ in range(number):
                    loop.turn()
            case ("cancel", int(request_id)):
                if RowKey(1, request_id) in loop.results:
                    loop.cancel(RowKey(1, request_id))
    loop.run()
    for sequence, ids in zip(sequences, alone, strict=True):
        result = loop.results[sequence.key]
        if isinstance(result.outcome, Finish):
            assert result.token_ids == ids
            if sequence.sampling.prompt_logprobs is not None:
                assert [-p for p in result.prompt_logprobs] == sequence.token_ids[
                    1 : sequence.num_prompt_tokens
                ].tolist()
        else:
            assert isinstance(result.outcome, Cancelled)
            assert result.token_ids == ids[: len(result.token_ids)]
    assert len(loop.scheduler.rows._free_slots) == max_sequences
