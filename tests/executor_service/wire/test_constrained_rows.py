# SPDX-License-Identifier: Apache-2.0
"""Rows with a constraint on their way to the engine: compiled first, and ended whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest

from executor_service.scheduling.sequence import Grammar
from protos.packserve.v1 import sampling_pb2
from tests.fixtures.executor_server import Row, RunningExecutor, connected, running_executor
from tests.fixtures.waiting import until

ABC = sampling_pb2.SamplingParameters(constraint=sampling_pb2.Constraint(regex="abc+"), max_tokens=9)
BEFORE_A = [ord("a") - 1]


class SlowGrammars:
    """Compiles until it is let go."""

    def __init__(self, executor: RunningExecutor) -> None:
        self.is_asked = asyncio.Event()
        self.release = asyncio.Event()
        self._real = executor.streams.grammars
        executor.streams.grammars = self  # type: ignore[assignment]

    async def get(self, *args: Any) -> Grammar:
        self.is_asked.set()
        await self.release.wait()
        return await self._real.get(*args)


async def test_row_runs_when_its_grammar_is_compiled_and_others_do_not_wait() -> None:
    async with running_executor() as executor, connected(executor) as client:
        slow = SlowGrammars(executor)
        await client.send({1: BEFORE_A}, sampling=ABC)
        await slow.is_asked.wait()
        await client.send({2: [5]}, sampling=sampling_pb2.SamplingParameters(max_tokens=2))
        await client.read_until_ended(2)
        assert 1 not in client.rows
        assert executor.streams.load().num_waiting == 1
        slow.release.set()
        await client.read_until_ended(1)
        assert bytes(client.rows[1].token_ids) == b"abccccccc"
        assert executor.streams.load().num_waiting == 0


async def test_constraint_ends_the_row_when_nothing_can_follow() -> None:
    async with running_executor() as executor, connected(executor) as client:
        await client.send({1: BEFORE_A}, sampling=sampling_pb2.SamplingParameters(constraint={"regex": "abc"}))
        await client.read_until_ended(1)
        assert bytes(client.rows[1].token_ids) == b"abc"
        finished = client.rows[1].terminals[0].finished
        assert finished.reason == sampling_pb2.FINISH_REASON_STOP
        assert not finished.HasField("stop_token_id")


async def test_bad_constraint_ends_its_row_alone() -> None:
    async with running_executor() as executor, connected(executor) as client:
        await client.send({1: [5]}, sampling=sampling_pb2.SamplingParameters(constraint={"regex": "("}))
        await client.send({2: [5]}, sampling=sampling_pb2.SamplingParameters(max_tokens=2))
        await client.read_until_ended(1, 2)
        error = client.rows[1].terminals[0].error
        assert error.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
        assert "constraint.regex" in error.detail
        assert client.rows[2].token_ids == [6, 7]


@pytest.mark.parametrize("is_twice", [False, True])
async def test_cancelled_while_it_is_compiled(is_twice: bool) -> None:
    """Or sent again under the same id, which is answered with the error."""
    async with running_executor() as executor, connected(executor) as client:
        slow = SlowGrammars(executor)
        await client.send({1: BEFORE_A}, sampling=ABC)
        await slow.is_asked.wait()
        if is_twice:
            await client.send({1: BEFORE_A}, sampling=ABC)
        else:
            await client.send({}, cancel=[1])
        await client.read_until_ended(1)
        assert client.rows[1].outcome == ("error" if is_twice else "cancelled")
        slow.release.set()
        await client.send({2: [5]}, sampling=sampling_pb2.SamplingParameters(max_tokens=2))
        await client.read_until_ended(2)
        assert client.rows[1].token_ids == []
        assert (executor.streams.num_queued, executor.engine.scheduler.num_used_blocks) == (0, 0)


async def test_deadline_passes_while_it_is_compiled() -> None:
    async with running_executor() as executor, connected(executor) as client:
        SlowGrammars(executor)
        await client.send({1: BEFORE_A}, sampling=ABC, timeout_ms=100)
        await client.read_until_ended(1)
        assert client.rows[1].terminals[0].error.code == grpc.StatusCode.DEADLINE_EXCEEDED.value[0]


async def test_end_of_the_stream_ends_its_waiting_rows() -> None:
    async with running_executor() as executor:
        async with connected(executor) as client:
            slow = SlowGrammars(executor)
            await client.send({1: BEFORE_A}, sampling=ABC)
            await slow.is_asked.wait()
        await until(lambda: not executor.streams.num_queued)
        assert not [task for task in asyncio.all_tasks() if "ConstrainedRows" in repr(task)]


async def test_half_closed_stream_waits_for_them() -> None:
    async with running_executor() as executor, connected(executor) as client:
        slow = SlowGrammars(executor)
        await client.send({1: BEFORE_A}, sampling=ABC)
        await client.call.done_writing()
        await slow.is_asked.wait()
        slow.release.set()
        await client.read_until_ended(1)


async def test_known_output_goes_on_where_it_stopped() -> None:
    """Taken over after "a": the constraint counts it, and what does not fit it is refused."""
    async with running_executor() as executor, connected(executor) as client:
        sampling = sampling_pb2.SamplingParameters(constraint={"regex": "abc"})
        client.rows[1] = Row([ord("a")])
        await client.send({1: [5, ord("a")]}, sampling=sampling, num_output_known=1)
        await client.send({2: [5, ord("b")]}, sampling=sampling, num_output_known=1)
        await client.read_until_ended(1, 2)
        assert bytes(client.rows[1].token_ids) == b"abc"
        assert "known output's id 98 at position 0" in client.rows[2].terminals[0].error.detail


async def test_output_that_may_end_ends_with_a_stop_id_of_its_row() -> None:
    """The counting model goes on to "c", which is a stop id of this row, where "ab" may end."""
    async with running_executor() as executor, connected(executor) as client:
        sampling = sampling_pb2.SamplingParameters(constraint={"regex": "ab[x-z]?"}, stop_token_ids=[ord("c")])
        await client.send({1: BEFORE_A}, sampling=sampling)
        await client.read_until_ended(1)
        assert bytes(client.rows[1].token_ids) == b"abc"
        assert client.rows[1].terminals[0].finished.stop_token_id == ord("c")
