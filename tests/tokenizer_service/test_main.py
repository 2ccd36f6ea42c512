# SPDX-License-Identifier: Apache-2.0
"""The service as a process: its ports, its signals, and settings that stop the start."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.packserve.v1 import tokenizer_pb2, tokenizer_pb2_grpc
from protos.vocabulary import Vocabulary
from tests.fixtures.byte_tokenizer import write_byte_tokenizer
from tests.fixtures.fake_executor import FakeExecutor, running_executor
from tokenizer_service.__main__ import main

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@dataclass
class Process:
    process: asyncio.subprocess.Process
    ports: dict[str, int]

    def channel(self, name: str = "port") -> grpc.aio.Channel:
        return grpc.aio.insecure_channel(f"127.0.0.1:{self.ports[name]}")


async def spawn(model: Path, *arguments: str, **environment: str) -> asyncio.subprocess.Process:
    command = [sys.executable, "-m", "tokenizer_service", "--model", str(model), "--host", "127.0.0.1", *arguments]
    return await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=os.environ | environment
    )


@asynccontextmanager
async def running(model: Path, executor: str) -> AsyncIterator[Process]:
    zeros = ("--port", "0", "--health-port", "0", "--metrics-port", "0")
    process = await spawn(model, *zeros, TOKENIZER_EXECUTORS=executor)
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode()
    try:
        yield Process(process, {name: int(port) for name, port in re.findall(r"(\w*port)=(\d+)", line)})
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def wait_status(channel: grpc.aio.Channel, name: str, status: int) -> None:
    async for response in health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=name)):
        if response.status == status:
            return


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_byte_tokenizer(tmp_path / "tiny")


async def test_signal_drains_the_open_stream_and_ends_well(model: Path) -> None:
    fake = FakeExecutor(output=lambda _: b"x" * 50, vocabulary_sha256=Vocabulary.load(model).sha256)
    async with (
        running_executor(fake) as executor,
        running(model, executor.address) as it,
        it.channel() as channel,
        it.channel("health_port") as health,
    ):
        await asyncio.wait_for(wait_status(health, "readiness", SERVING), 20)
        stub: Any = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        call = stub.GenerateStream(tokenizer_pb2.GenerateRequest(prompts=[tokenizer_pb2.Prompt(text="a")]))
        texts = [choice.text for choice in (await call.read()).choices]
        fake.runs.clear()
        it.process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(wait_status(health, "readiness", NOT_SERVING), 5)
        fake.runs.set()
        texts += [choice.text async for message in _rest(call) for choice in message.choices]
        assert "".join(texts) == "x" * 50
        assert await asyncio.wait_for(it.process.wait(), 10) == 0


async def _rest(call: Any) -> AsyncIterator[tokenizer_pb2.GenerateStreamResponse]:
    while message := await call.read():
        yield message


async def test_second_server_on_a_used_port_refuses_and_the_first_keeps_on(model: Path) -> None:
    """B49."""
    async with running(model, "127.0.0.1:1") as it:
        port = str(it.ports["port"])
        second = await spawn(model, "--port", port, "--health-port", "0", "--metrics-port", "0")
        _, stderr = await asyncio.wait_for(second.communicate(), 20)
        assert second.returncode == 1
        assert f"TOKENIZER_PORT={port}" in stderr.decode()
        assert "Traceback" not in stderr.decode()
        async with it.channel() as channel:
            await asyncio.wait_for(wait_status(channel, "liveness", SERVING), 5)


def test_setting_from_the_environment_stops_the_start(tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["--model", str(tmp_path)], env={"TOKENIZER_HEALTH_PORT": "70000"})
    assert result.exit_code == 1
    assert "TOKENIZER_HEALTH_PORT=70000" in result.output


def test_help_teaches_flags_and_environment() -> None:
    output = CliRunner().invoke(main, ["--help"]).output
    for words in ("--executors", "dns:///name:port", "TOKENIZER_HEALTH_PORT", "SIGTERM", "127.0.0.1:50061"):
        assert words in output
