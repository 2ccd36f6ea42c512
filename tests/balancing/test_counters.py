# SPDX-License-Identifier: Apache-2.0
"""Counters over replicas: one process each, so that their sum is the calls there were, and a restart is a reset that
Prometheus sees (B60); and as many series after ten thousand calls as before the first (B62)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from protos.client import generate_request
from protos.packserve.v1 import tokenizer_pb2_grpc
from tests.balancing.callers import assert_answered, balancing_stub, many, unary
from tests.balancing.fleet import Fleet, num_calls, running_fleet, scrape

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

HOSTS = ["127.0.7.1", "127.0.7.2"]
# As many as there are minutes in the rule test: its samples are a minute apart.
NUM_SCRAPES = 20


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def fleet(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Fleet]:
    async with running_fleet(tmp_path_factory.mktemp("fleet"), ["127.0.8.1"], HOSTS) as running:
        yield running


def calls_of(fleet: Fleet) -> list[int]:
    return [num_calls(fleet.replica_ports(host)) for host in HOSTS]


async def test_sums_are_the_calls_and_never_fall(fleet: Fleet, tmp_path: Path) -> None:
    """100 calls among 20 scrapes, then a restart and 50 more: Prometheus' increase() is 150."""
    scrapes = [[0, 0], calls_of(fleet)]
    async with balancing_stub("ipv4:" + ",".join(f"{host}:{fleet.replica_port}" for host in HOSTS)) as stub:
        for _ in range(NUM_SCRAPES):
            assert_answered(await many(lambda: unary(stub), 5))
            scrapes.append(calls_of(fleet))
        sums = [sum(each) for each in scrapes]
        assert sums == sorted(sums)
        assert sums[-1] == 100
        await fleet.stop(fleet.replicas, HOSTS[0])
        await fleet.add_replicas(HOSTS[0])
        assert calls_of(fleet)[0] == 0
        assert_answered(await many(lambda: unary(stub), 50))
        scrapes.append(calls_of(fleet))
    assert sum(scrapes[-1]) < 150
    assert_increase(tmp_path, scrapes, 150)


def assert_increase(folder: Path, scrapes: list[list[int]], total: int) -> None:
    """By Prometheus' own evaluation of the samples, the last one as it is for the rest of a range of hours."""
    end = len(scrapes) - 1
    series = [
        {
            "series": f'packserve_requests_total{{instance="{host}"}}',
            "values": " ".join(str(each[i]) for each in scrapes),
        }
        for i, host in enumerate(HOSTS)
    ]
    queries = {
        f"sum(increase(packserve_requests_total[{end}m]))": total,
        "sum(resets(packserve_requests_total[1h]))": 1,
    }
    checks = [
        {"expr": expr, "eval_time": f"{end}m", "exp_samples": [{"labels": "{}", "value": value}]}
        for expr, value in queries.items()
    ]
    path = folder / "increase.yaml"
    path.write_text(json.dumps({"tests": [{"interval": "1m", "input_series": series, "promql_expr_test": checks}]}))
    result = subprocess.run(["promtool", "test", "rules", path], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


async def test_series_are_as_many_after_ten_thousand_calls(fleet: Fleet) -> None:
    """Of distinct request ids and texts, a thousand of them answered; the others name distinct models."""
    executor, replica = fleet.executor_ports("127.0.8.1"), fleet.replica_ports(HOSTS[0])
    before = [set(scrape(ports)) for ports in (executor, replica)]
    numbers = count()
    async with grpc.aio.insecure_channel(f"{replica.host}:{replica.port}") as channel:
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        answers = await many(lambda: distinct_call(stub, next(numbers)), 10_000, at_once=32)
    assert answers.count("answered") == 1000
    assert num_calls(replica) >= 10_000
    assert [set(scrape(ports)) for ports in (executor, replica)] == before


async def distinct_call(stub: Any, number: int) -> Any:
    model = "" if number % 10 == 0 else f"model-{number}"
    fields = {"max_tokens": 1, "request_id": f"id-{number}", "model": model, "cache_salt": f"salt-{number}".encode()}
    try:
        await stub.Generate(generate_request(f"text {number}", (), fields), timeout=60)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return "answered"
