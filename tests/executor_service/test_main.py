# SPDX-License-Identifier: Apache-2.0
"""The executor as a process: health over its life, used ports, drain, and an end when its engine fails."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.packserve.v1 import executor_pb2, sampling_pb2
from protos.server import PROTOCOL_VERSION, Ports
from protos.vocabulary import Vocabulary
from tests.fixtures import executor_server
from tests.fixtures.byte_tokenizer import write_byte_tokenizer
from tests.fixtures.executor_server import open_stream
from tests.fixtures.random_model import write_random_model
from tokenizer_service.cli.children import wait_ready

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory: Path = tmp_path_factory.mktemp("model")
    write_random_model(directory, max_position_embeddings=4096)
    return write_byte_tokenizer(directory)


def free_ports() -> Ports:
    with socket.socket() as a, socket.socket() as b, socket.socket() as c:
        for each in (a, b, c):
            each.bind(("127.0.0.1", 0))
        return Ports("127.0.0.1", *(each.getsockname()[1] for each in (a, b, c)))


def patch_process(monkeypatch: pytest.MonkeyPatch, directory: Path, code: str) -> None:
    """Processes started from now on run the code before anything else."""
    (directory / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(directory), os.getcwd()]))


def start(model: Path, ports: Ports, *arguments: str) -> subprocess.Popen[str]:
    listen = ["--host", ports.host, "--port", str(ports.port), "--health-port", str(ports.health_port)]
    command = [sys.executable, "-m", "executor_service", "--model", str(model), *listen, *arguments]
    environment = os.environ | {"EXECUTOR_METRICS_PORT": str(ports.metrics_port), "EXECUTOR_THREADS": "1"}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


@asynccontextmanager
async def running(model: Path, *arguments: str) -> AsyncIterator[tuple[subprocess.Popen[str], Ports]]:
    ports = free_ports()
    process = start(model, ports, "--num-blocks", "300", *arguments)
    try:
        async with asyncio.timeout(60):
            await wait_ready(f"127.0.0.1:{ports.health_port}")
        yield process, ports
    finally:
        process.kill()
        await asyncio.to_thread(process.communicate)


async def status(port: int, service: str) -> int:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        response = await health_pb2_grpc.HealthStub(channel).Check(request, wait_for_ready=True, timeout=30)
        return int(response.status)


def hello(model: Path) -> executor_pb2.ExecuteRequest:
    sha256 = Vocabulary.load(model).sha256
    return executor_pb2.ExecuteRequest(
        hello=executor_pb2.Hello(protocol_version=PROTOCOL_VERSION, vocabulary_sha256=sha256)
    )


async def test_live_before_ready(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = "import time\nimport executor_service.loading as l\nload = l.load_model\n"
    patch_process(monkeypatch, tmp_path, slow + "l.load_model = lambda config: (time.sleep(3), load(config))[1]\n")
    ports = free_ports()
    process = start(model, ports, "--num-blocks", "300")
    try:
        assert await status(ports.health_port, "liveness") == SERVING
        assert await status(ports.health_port, "readiness") == NOT_SERVING
        async with asyncio.timeout(60):
            await wait_ready(f"127.0.0.1:{ports.health_port}")
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("module", ["executor_service", "tokenizer_service"])
def test_sigterm_before_anything_is_there_ends_it(module: str, model: Path) -> None:
    """While it imports, which is most of its start."""
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", module, "--model", str(model)], stderr=subprocess.PIPE
    )
    assert process.stderr
    while b" protos.errors" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 0


async def test_sigterm_while_the_model_is_loaded_ends_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = "import time\nimport executor_service.loading as l\nl.load_model = lambda config: time.sleep(60)\n"
    patch_process(monkeypatch, tmp_path, slow)
    ports = free_ports()
    process = start(model, ports)
    assert await status(ports.health_port, "liveness") == SERVING
    process.send_signal(signal.SIGTERM)
    await asyncio.to_thread(process.communicate, timeout=30)
    assert process.returncode == 0


@pytest.mark.parametrize("which", ["port", "health_port", "metrics_port"])
async def test_second_executor_on_a_used_port_refuses_to_start(model: Path, which: str) -> None:
    """B49: it exits non-zero saying so, the first keeps all traffic."""
    async with running(model) as (_, first):
        second = Ports(**(vars(free_ports()) | {which: getattr(first, which)}))
        process = start(model, second)
        _, stderr = await asyncio.to_thread(process.communicate)
        assert process.returncode != 0
        assert f"EXECUTOR_{which.upper()}={getattr(first, which)}" in stderr
        assert await status(first.port, "readiness") == SERVING


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ({"eos_token_id": 320}, "config.json: eos_token_id is 320, must be in the model's vocabulary [0, 320)"),
        ({"rope_scaling": ["x"]}, "config.json: rope_scaling is ['x'], must be an object"),
    ],
)
async def test_a_model_directory_that_is_wrong_ends_the_start_in_one_line(
    tmp_path: Path, overrides: dict[str, Any], line: str
) -> None:
    config = json.loads((write_random_model(tmp_path) / "config.json").read_text()) | overrides
    (tmp_path / "config.json").write_text(json.dumps(config))
    process = start(tmp_path, free_ports())
    _, stderr = await asyncio.to_thread(process.communicate, None, 60)
    assert process.returncode == 1
    assert stderr.splitlines()[-1] == f"packserve executor: {line}"
    assert "Traceback" not in stderr


async def test_sigterm_lets_open_rows_end(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_server, "HELLO", hello(model))
    async with running(model) as (process, ports), open_stream(f"127.0.0.1:{ports.port}") as client:
        await client.hello()
        sampling = sampling_pb2.SamplingParameters(temperature=0, max_tokens=400, ignore_eos=True)
        await client.send({1: [5]}, sampling=sampling)
        await client.read()
        process.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        assert await status(ports.health_port, "readiness") == NOT_SERVING
        while await client.read():
            pass
        assert len(client.rows[1].token_ids) == 400
        assert client.rows[1].outcome == "finished"
        assert await asyncio.to_thread(process.wait, 20) == 0


async def test_failed_engine_ends_the_process(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restart is what helps: the executor must not stay as the least loaded one."""
    failing = (
        "import executor_service.device.runner as r\n"
        "forward = r.DeviceRunner.forward\n"
        "def failing(self, step):\n"
        "    if step.number == 5: raise RuntimeError('a kernel failed')\n"
        "    return forward(self, step)\n"
        "r.DeviceRunner.forward = failing\n"
    )
    patch_process(monkeypatch, tmp_path, failing)
    monkeypatch.setattr(executor_server, "HELLO", hello(model))
    async with running(model) as (process, ports), open_stream(f"127.0.0.1:{ports.port}") as client:
        await client.hello()
        await client.send({1: [5]}, sampling=sampling_pb2.SamplingParameters(max_tokens=100, ignore_eos=True))
        await client.read_until_ended(1)
        assert client.rows[1].terminals[0].error.code == grpc.StatusCode.UNAVAILABLE.value[0]
        _, stderr = await asyncio.to_thread(process.communicate, None, 30)
        assert process.returncode == 1
        assert "the engine has stopped: a kernel failed" in stderr
