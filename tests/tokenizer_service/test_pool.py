# SPDX-License-Identifier: Apache-2.0
"""Which executor a row goes to, and which executors there are."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import numpy as np
import pytest

from protos.errors import Unavailable
from protos.packserve.v1 import executor_pb2
from protos.server import PROTOCOL_VERSION
from tests.fixtures.fake_executor import FakeExecutor, running_executor
from tests.fixtures.waiting import until
from tokenizer_service import link as link_module
from tokenizer_service import pool as pool_module
from tokenizer_service.pool import ExecutorPool, resolve
from tokenizer_service.rows import Arrivals, RowRequest, RowStream

HELLO = executor_pb2.Hello(protocol_version=PROTOCOL_VERSION, vocabulary_sha256="fake")


@asynccontextmanager
async def running_pool(*targets: str, seen: list[bool] | None = None) -> AsyncIterator[ExecutorPool]:
    """seen: whether the pool took rows at each change that was announced."""

    async def on_change() -> None:
        if seen is not None:
            seen.append(pool.takes_rows)

    pool = ExecutorPool(targets, HELLO, on_change, lambda _: None)
    await pool.start()
    try:
        yield pool
    finally:
        await pool.aclose()


@asynccontextmanager
async def pool_of(*fakes: FakeExecutor) -> AsyncIterator[ExecutorPool]:
    async with AsyncExitStack() as stack:
        executors = [await stack.enter_async_context(running_executor(fake)) for fake in fakes]
        pool = await stack.enter_async_context(running_pool(*(executor.address for executor in executors)))
        await until(lambda: pool.num_connected == len(fakes))
        yield pool


def held() -> FakeExecutor:
    """Takes rows and never runs them."""
    fake = FakeExecutor(heartbeat_s=0.02)
    fake.runs.clear()
    return fake


def submit(pool: ExecutorPool) -> RowStream:
    return pool.pick().submit(RowRequest(np.array([1], np.int32), executor_pb2.Row()), Arrivals())


async def test_no_executor_is_unavailable_with_both_numbers() -> None:
    async with running_pool("127.0.0.1:1", "127.0.0.1:2") as pool:
        with pytest.raises(Unavailable, match=r"no executor is connected \(0 of 2\)"):
            pool.pick()
        assert pool.welcome is None


async def test_rows_spread_evenly_over_idle_executors() -> None:
    async with pool_of(FakeExecutor(), FakeExecutor(), FakeExecutor()) as pool:
        picks = Counter(pool.pick().address for _ in range(30))
        assert sorted(picks.values()) == [10, 10, 10]


async def test_row_goes_to_the_executor_with_the_least_work() -> None:
    busy, idle = held(), held()
    busy.load = executor_pb2.Load(num_running=3)
    async with pool_of(busy, idle) as pool:
        rows = [submit(pool) for _ in range(3)]
        await until(lambda: len(idle.rows) == 3)
        assert not busy.rows
        submit(pool)
        submit(pool)
        await until(lambda: len(idle.rows) == 4)
        await until(lambda: len(busy.rows) == 1)
        assert len(rows) == 3


async def test_draining_executor_gets_no_rows() -> None:
    draining, other = held(), held()
    async with pool_of(draining, other) as pool:
        submit(pool), submit(pool)
        await until(lambda: draining.rows and other.rows)
        draining.load = executor_pb2.Load(is_draining=True)
        await until(lambda: sum(link.takes_rows for link in pool._links.values()) == 1)
        for _ in range(4):
            submit(pool)
        await until(lambda: len(other.rows) == 5)
        assert len(draining.rows) == 1


async def test_executors_behind_a_name_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "RESOLVE_EVERY_S", 0.02)
    behind: set[str] = set()

    async def fake_resolve(name: str) -> frozenset[str]:
        assert name == "executors:50061"
        return frozenset(behind)

    monkeypatch.setattr(pool_module, "resolve", fake_resolve)
    first, second = held(), held()
    async with (
        running_executor(first) as a,
        running_executor(second) as b,
        running_pool("dns:///executors:50061") as pool,
    ):
        behind.add(a.address)
        await until(lambda: pool.num_connected == 1)
        row = submit(pool)
        await until(lambda: first.rows)
        behind.symmetric_difference_update({a.address, b.address})
        await until(lambda: pool.welcome and pool.pick().address == b.address)
        first.runs.set()  # a row that was open there still ends
        await row._arrivals.next()
        await until(lambda: first.num_ended_streams)
        assert isinstance(row.take().outcome, executor_pb2.Finished)
        assert pool.num_connected == 1


async def test_last_executor_that_leaves_a_name_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "RESOLVE_EVERY_S", 0.02)
    behind: set[str] = set()

    async def fake_resolve(_name: str) -> frozenset[str]:
        return frozenset(behind)

    monkeypatch.setattr(pool_module, "resolve", fake_resolve)
    seen: list[bool] = []
    async with running_executor(FakeExecutor()) as a, running_pool("dns:///executors:50061", seen=seen) as pool:
        behind.add(a.address)
        await until(lambda: pool.takes_rows)
        await until(lambda: seen[-1])
        behind.clear()
        await until(lambda: not pool.takes_rows)
        await until(lambda: not seen[-1])
        assert pool.num_connected == 0


async def test_executor_of_another_model_waits_until_those_of_the_first_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_module, "OTHER_MODEL_RETRY_S", 0.05)
    monkeypatch.setattr(link_module, "RETRY_S", 0.05)
    old, new = FakeExecutor(weights_sha256="old"), FakeExecutor(weights_sha256="new")
    async with running_executor(old) as first, running_executor(new) as second, running_pool(first.address) as pool:
        await until(lambda: pool.num_connected == 1)
        await pool._set_addresses(frozenset({first.address, second.address}))
        await until(lambda: pool.num_refused == 1)
        assert {pool.pick().address for _ in range(4)} == {first.address}
        await first.server.stop(None)
        await until(lambda: pool.takes_rows and pool.pick().address == second.address)
        assert pool.num_refused == 0
        assert pool.welcome is not None
        assert pool.welcome.fingerprint.weights_sha256 == "new"


async def test_name_that_does_not_resolve_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "RESOLVE_EVERY_S", 0.01)
    tries = []

    async def failing(name: str) -> frozenset[str]:
        tries.append(name)
        raise socket.gaierror("no such name")

    monkeypatch.setattr(pool_module, "resolve", failing)
    async with running_pool("dns:///nowhere:1"):
        await until(lambda: len(tries) > 2)
        await asyncio.sleep(0)


async def test_resolve_gives_addresses_of_one_family() -> None:
    assert await resolve("127.0.0.1:50061") == {"127.0.0.1:50061"}
    assert await resolve("[::1]:50061") == {"[::1]:50061"}
