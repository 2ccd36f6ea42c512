# SPDX-License-Identifier: Apache-2.0
"""B65: a model that loads for five minutes is waited for, and no restart depends on the peer service.

The probes are those of the manifests, asked of real processes as a kubelet would; a minute lasts two seconds.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.server import Ports
from tests.executor_service.test_main import free_ports, patch_process
from tests.fixtures.byte_tokenizer import write_byte_tokenizer
from tests.fixtures.random_model import write_random_model
from tests.fixtures.repository import ROOT
from tests.k8s.manifests import Manifests, Resource, container
from tests.k8s.pods import LOAD_S

SECONDS_OF_A_SECOND = 1 / 30
SLOW = """
import time
import executor_service.loading as loading
load = loading.load_model
loading.load_model = lambda config: (time.sleep({seconds}), load(config))[1]
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_random_model(tmp_path / "model", max_position_embeddings=4096)
    return write_byte_tokenizer(tmp_path / "model")


@contextmanager
def running(service: str, model: Path, *arguments: str) -> Iterator[Ports]:
    ports = free_ports()
    listen = ["--port", str(ports.port), "--health-port", str(ports.health_port)]
    command = [sys.executable, "-m", f"{service}_service", "--model", str(model), "--host", ports.host, *listen]
    command += ["--metrics-port", str(ports.metrics_port), *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield ports
        finally:
            process.kill()


async def succeeds(probe: Resource, port: int) -> bool:
    request = health_pb2.HealthCheckRequest(service=probe["grpc"]["service"])
    # A connection of its own, that knows nothing of earlier failures.
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options) as channel:
        try:
            response = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=probe["timeoutSeconds"])
        except grpc.aio.AioRpcError:
            return False
    return bool(response.status == health_pb2.HealthCheckResponse.SERVING)


async def answers(probe: Resource, port: int) -> AsyncIterator[bool]:
    """Until the kubelet would give up."""
    num_failures = 0
    while num_failures < probe["failureThreshold"]:
        is_success = await succeeds(probe, port)
        num_failures = 0 if is_success else num_failures + 1
        yield is_success
        await asyncio.sleep(probe["periodSeconds"] * SECONDS_OF_A_SECOND)


async def started(probes: Resource, port: int) -> bool:
    """Whether the startup probe succeeds before the container would be restarted."""
    async for is_success in answers(probes["startupProbe"], port):
        if is_success:
            return True
    return False


async def alive(probes: Resource, port: int) -> None:
    """When it answers for the first time."""
    for _ in range(300):
        if await succeeds(probes["livenessProbe"], port):
            return
        await asyncio.sleep(0.1)
    raise AssertionError("not alive")


def probes(service: str) -> Resource:
    return container(Manifests.of_overlay(ROOT / "k8s" / "overlays" / "production").workload(service))


@pytest.mark.slow
async def test_executor_that_loads_for_five_minutes_is_not_restarted(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is alive all the while, and ready when the model is."""
    patch_process(monkeypatch, tmp_path, SLOW.format(seconds=LOAD_S * SECONDS_OF_A_SECOND))
    asked = probes("executor")
    with running("executor", model, "--num-blocks", "300", "--threads", "1") as ports:
        begun_s = asyncio.get_running_loop().time()
        starting = asyncio.create_task(started(asked, ports.health_port))
        await alive(asked, ports.health_port)
        assert not await succeeds(asked["readinessProbe"], ports.health_port)
        while not starting.done():
            assert await succeeds(asked["livenessProbe"], ports.health_port)
            await asyncio.sleep(0.2)
        assert starting.result()
        assert asyncio.get_running_loop().time() - begun_s > LOAD_S * SECONDS_OF_A_SECOND
        assert await succeeds(asked["readinessProbe"], ports.health_port)


@pytest.mark.slow
async def test_budget_ends(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor that never gets ready is restarted: the probe does not ask whether a process answers."""
    patch_process(monkeypatch, tmp_path, SLOW.format(seconds=3600))
    asked = probes("executor")
    asked["startupProbe"]["failureThreshold"] = 20
    with running("executor", model, "--num-blocks", "300", "--threads", "1") as ports:
        await alive(asked, ports.health_port)
        assert not await started(asked, ports.health_port)


@pytest.mark.slow
async def test_tokenizer_starts_and_lives_without_an_executor(model: Path) -> None:
    """And is not called meanwhile."""
    asked = probes("tokenizer")
    with running("tokenizer", model, "--executors", "dns:///packserve-executor.invalid:50061") as ports:
        assert await started(asked, ports.health_port)
        assert await succeeds(asked["livenessProbe"], ports.health_port)
        assert not await succeeds(asked["readinessProbe"], ports.health_port)
