# SPDX-License-Identifier: Apache-2.0
"""Through one plain connection to Envoy, with health checks and retries: each replica gets its share, one added gets
traffic soon, and one killed loses no call that had not begun to answer (B66)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio

from protos.packserve.v1 import tokenizer_pb2_grpc
from tests.balancing.callers import (
    assert_answered,
    assert_only_begun_streams_are_cut,
    assert_shared,
    gained,
    many,
    stream,
    unary,
)
from tests.balancing.envoy import running_envoy
from tests.balancing.fleet import Fleet, running_fleet

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

EXECUTOR_HOSTS = ["127.0.4.1"]
REPLICA_HOSTS = [f"127.0.3.{i}" for i in range(1, 4)]
# A health check each second.
SOON_S = 5.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    folder = tmp_path_factory.mktemp("fleet")
    async with running_fleet(folder, EXECUTOR_HOSTS, REPLICA_HOSTS[:2]) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stub(fleet: Fleet) -> AsyncIterator[Any]:
    """Of a caller that knows nothing of balancing. Envoy knows three addresses, one of them not there yet."""
    envoy = running_envoy(fleet.folder, REPLICA_HOSTS, fleet.replica_port)
    async with envoy as address, grpc.aio.insecure_channel(address) as channel:
        yield tokenizer_pb2_grpc.TokenizerServiceStub(channel)


async def test_each_replica_gets_a_fifth_of_the_calls(fleet: Fleet, stub: Any) -> None:
    before = fleet.calls_by_replica()
    assert_answered(await many(lambda: unary(stub)))
    assert_shared(gained(before, fleet.calls_by_replica()))


async def test_added_replica_gets_traffic_soon(fleet: Fleet, stub: Any) -> None:
    await fleet.add_replicas(REPLICA_HOSTS[2])
    begun_s = time.monotonic()
    while not fleet.calls_by_replica()[REPLICA_HOSTS[2]]:
        assert_answered(await many(lambda: unary(stub), 4))
        assert time.monotonic() - begun_s < SOON_S
    before = fleet.calls_by_replica()
    assert_answered(await many(lambda: unary(stub)))
    assert_shared(gained(before, fleet.calls_by_replica()))


async def test_killed_replica_loses_no_call_that_had_not_begun(fleet: Fleet, stub: Any) -> None:
    """Envoy resets a stream that is cut; gRPC calls that INTERNAL."""
    internal = grpc.StatusCode.INTERNAL
    await assert_only_begun_streams_are_cut(stub, lambda: fleet.kill(fleet.replicas, REPLICA_HOSTS[0]), internal)


async def test_draining_replica_loses_nothing(fleet: Fleet, stub: Any) -> None:
    """What it has begun it ends; what it refuses goes to the other one."""
    calls = asyncio.gather(many(lambda: unary(stub, 100), 60), many(lambda: stream(stub, 100), 60))
    await asyncio.sleep(0.5)
    await fleet.stop(fleet.replicas, REPLICA_HOSTS[2])
    for answers in await calls:
        assert_answered(answers, 100)
