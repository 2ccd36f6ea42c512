# SPDX-License-Identifier: Apache-2.0
"""The executor as an operator starts it: `--device npu:0`, ready over gRPC, a row answered, a stop that is clean.
Nothing is computed, so that its ids mean nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.packserve.v1 import executor_pb2, sampling_pb2
from protos.server import PROTOCOL_VERSION
from protos.vocabulary import BYTE_OF_CHARACTER, Vocabulary
from tests.fixtures.executor_server import StreamClient, open_stream
from tests.fixtures.random_model import write_random_model

FLAGS = ["--device", "npu:0", "--dtype", "float16", "--block-tokens", "16", "--max-step-tokens", "64"]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    model = {"type": "BPE", "vocab": dict(BYTE_OF_CHARACTER), "merges": []}
    tokenizer = {"model": model, "added_tokens": [], "decoder": {"type": "ByteLevel"}}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    return write_random_model(tmp_path, hidden_size=128, head_dim=128)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def start(directory: Path, port: int, health_port: int, metrics_port: int) -> subprocess.Popen[str]:
    listen = ["--host", "127.0.0.1", "--port", str(port), "--health-port", str(health_port)]
    command = [sys.executable, "-m", "executor_service", "--model", str(directory), *listen, *FLAGS]
    environment = os.environ | {"EXECUTOR_METRICS_PORT": str(metrics_port)}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


async def ready(health_port: int) -> None:
    request = health_pb2.HealthCheckRequest(service="readiness")
    async with grpc.aio.insecure_channel(f"127.0.0.1:{health_port}") as channel:
        async for response in health_pb2_grpc.HealthStub(channel).Watch(request, wait_for_ready=True):
            if response.status == health_pb2.HealthCheckResponse.SERVING:
                return


def hello_of(directory: Path) -> executor_pb2.ExecuteRequest:
    sha256 = Vocabulary.load(directory).sha256
    hello = executor_pb2.Hello(protocol_version=PROTOCOL_VERSION, vocabulary_sha256=sha256)
    return executor_pb2.ExecuteRequest(hello=hello)


@contextlib.asynccontextmanager
async def serving(directory: Path) -> AsyncIterator[tuple[subprocess.Popen[str], str]]:
    port, health_port, metrics_port = free_ports(3)
    process = start(directory, port, health_port, metrics_port)
    try:
        async with asyncio.timeout(90):
            await ready(health_port)
        yield process, f"127.0.0.1:{port}"
    finally:
        process.kill()
        await asyncio.to_thread(process.communicate)


async def answered(address: str, hello: executor_pb2.ExecuteRequest) -> StreamClient:
    async with open_stream(address) as client:
        await client.call.write(hello)
        welcome = (await client.call.read()).welcome
        assert welcome.fingerprint.dtype == "float16"
        sampling = sampling_pb2.SamplingParameters(temperature=1.0, top_k=20, top_p=0.9, max_tokens=20)
        await client.send({1: range(100), 2: [5, 6]}, sampling=sampling)
        await client.read_until_ended(1, 2)
        return client


def test_rows_are_answered_and_sigterm_ends_it(directory: Path) -> None:
    async def run() -> None:
        async with serving(directory) as (process, address):
            client = await answered(address, hello_of(directory))
            assert {len(row.token_ids) for row in client.rows.values()} == {20}
            assert {row.outcome for row in client.rows.values()} == {"finished"}
            process.send_signal(signal.SIGTERM)
            _, log = await asyncio.to_thread(process.communicate, timeout=60)
            assert process.returncode == 0, log

    asyncio.run(run())
