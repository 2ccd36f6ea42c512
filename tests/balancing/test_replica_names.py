# SPDX-License-Identifier: Apache-2.0
"""A caller that finds replicas by a name: one that comes gets calls when connections are renewed, and a roll-out loses
none."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.balancing.callers import assert_answered, assert_shared, balancing_stub, gained, many, unary
from tests.balancing.dns_server import dns_server
from tests.balancing.fleet import Fleet, running_fleet

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

HOSTS = [f"127.0.5.{i}" for i in range(1, 4)]
MAX_CONNECTION_AGE_S = 3
# Connections end at an age that differs by a tenth, then names are looked up.
SOON_S = 2 * MAX_CONNECTION_AGE_S + 2.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    settings = {"TOKENIZER_MAX_CONNECTION_AGE_S": str(MAX_CONNECTION_AGE_S)}
    async with running_fleet(tmp_path_factory.mktemp("fleet"), ["127.0.6.1"], HOSTS[:2], **settings) as running:
        yield running


async def test_added_replica_gets_traffic_soon(fleet: Fleet) -> None:
    names = list(fleet.replicas)
    async with dns_server(names) as server, balancing_stub(f"{server}replicas.test:{fleet.replica_port}") as stub:
        assert_answered(await many(lambda: unary(stub)))
        await fleet.add_replicas(HOSTS[2])
        names.append(HOSTS[2])
        begun_s = time.monotonic()
        while not fleet.calls_by_replica()[HOSTS[2]]:
            assert_answered(await many(lambda: unary(stub), 8))
            assert time.monotonic() - begun_s < SOON_S
        before = fleet.calls_by_replica()
        assert_answered(await many(lambda: unary(stub)))
        assert_shared(gained(before, fleet.calls_by_replica()))


async def test_rollout_loses_no_call(fleet: Fleet) -> None:
    """One goes, with its address, while another is there already: also where connections are never renewed."""
    names = [HOSTS[0]]
    async with dns_server(names) as server, balancing_stub(f"{server}replicas.test:{fleet.replica_port}") as stub:
        calls = asyncio.create_task(many(lambda: unary(stub, 40), 200))
        await asyncio.sleep(0.5)
        names[:] = [HOSTS[1]]
        before = fleet.calls_by_replica()[HOSTS[1]]
        await fleet.stop(fleet.replicas, HOSTS[0])
        assert_answered(await calls, 40)
        assert fleet.calls_by_replica()[HOSTS[1]] > before
