# SPDX-License-Identifier: Apache-2.0
"""Callers that balance by themselves, over replicas that balance over executors: each gets its share, one added gets
traffic soon, and one killed loses no call that had not begun to answer (B66)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.balancing.callers import (
    assert_answered,
    assert_only_begun_streams_are_cut,
    assert_shared,
    balancing_stub,
    gained,
    many,
    stream,
    unary,
)
from tests.balancing.fleet import Fleet, running_fleet

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

EXECUTOR_HOSTS = [f"127.0.2.{i}" for i in range(1, 5)]
REPLICA_HOSTS = [f"127.0.1.{i}" for i in range(1, 4)]
# Looked up every five seconds.
SOON_S = 10.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    async with running_fleet(folder, EXECUTOR_HOSTS[:3], REPLICA_HOSTS[:2]) as running:
        yield running


def addresses(fleet: Fleet) -> str:
    return "ipv4:" + ",".join(f"{host}:{fleet.replica_port}" for host in fleet.replicas)


async def test_each_replica_and_each_executor_gets_a_fifth_of_the_calls(fleet: Fleet) -> None:
    replicas, executors = fleet.calls_by_replica(), fleet.rows_by_executor()
    async with balancing_stub(addresses(fleet)) as stub:
        assert_answered(await many(lambda: unary(stub)))
    assert_shared(gained(replicas, fleet.calls_by_replica()))
    assert_shared(gained(executors, fleet.rows_by_executor()))


async def test_added_executor_gets_traffic_soon(fleet: Fleet) -> None:
    await fleet.add_executors(EXECUTOR_HOSTS[3])
    begun_s = time.monotonic()
    async with balancing_stub(addresses(fleet)) as stub:
        while not fleet.rows_by_executor()[EXECUTOR_HOSTS[3]]:
            await many(lambda: unary(stub), 4)
            assert time.monotonic() - begun_s < SOON_S
        await asyncio.sleep(5.5)  # the other replica looks it up too
        before = fleet.rows_by_executor()
        await many(lambda: unary(stub))
    assert_shared(gained(before, fleet.rows_by_executor()))


async def test_killed_executor_loses_no_call_that_had_not_begun(fleet: Fleet) -> None:
    async with balancing_stub(addresses(fleet)) as stub:
        await assert_only_begun_streams_are_cut(stub, lambda: fleet.kill(fleet.executors, EXECUTOR_HOSTS[0]))


async def test_killed_replica_loses_no_call_that_had_not_begun(fleet: Fleet) -> None:
    async with balancing_stub(addresses(fleet)) as stub:
        await assert_only_begun_streams_are_cut(stub, lambda: fleet.kill(fleet.replicas, REPLICA_HOSTS[0]))


async def test_draining_replica_loses_nothing(fleet: Fleet) -> None:
    """What it has begun it ends; what it refuses goes to the other one."""
    await fleet.add_replicas(REPLICA_HOSTS[2])
    async with balancing_stub(addresses(fleet)) as stub:
        calls = asyncio.gather(many(lambda: unary(stub, 100), 60), many(lambda: stream(stub, 100), 60))
        await asyncio.sleep(0.5)
        await fleet.stop(fleet.replicas, REPLICA_HOSTS[2])
        for answers in await calls:
            assert_answered(answers, 100)
