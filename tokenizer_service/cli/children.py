# SPDX-License-Identifier: Apache-2.0
"""Both services as child processes of one command: started in order, watched, and stopped in order.

Does not know what is asked of them, nor what their log lines mean.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import IO, Any, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from protos.errors import ConfigError, Unavailable
from protos.server import STOP_WITH_PARENT, Ports

T = TypeVar("T")

# Longer than a service's own drain.
STOP_TIMEOUT_S = 60
QUICK_RECONNECT = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 100)]


@dataclass(frozen=True)
class Child:
    name: str
    process: asyncio.subprocess.Process

    async def unless_ended(self, work: Coroutine[Any, Any, T]) -> T:
        """What ``work`` returns. Raises Unavailable when the child ends first."""
        task, end = asyncio.create_task(work), asyncio.create_task(self.process.wait())
        try:
            await asyncio.wait({task, end}, return_when=asyncio.FIRST_COMPLETED)
            if end.done():
                raise Unavailable(f"the {self.name} service ended with status {self.process.returncode}")
            return task.result()
        finally:
            for each in (task, end):
                each.cancel()
            await asyncio.gather(task, end, return_exceptions=True)

    async def stop(self) -> None:
        """Lets it drain; kills it when that takes too long, or when we are told to stop again."""
        if self.process.returncode is None:
            self.process.terminate()
        try:
            await asyncio.wait_for(self.process.wait(), STOP_TIMEOUT_S)
        except (TimeoutError, asyncio.CancelledError):
            self.process.kill()
            await self.process.wait()
            raise


@asynccontextmanager
async def child(name: str, ports: Ports, log: IO[str] | None, *arguments: str) -> AsyncIterator[Child]:
    """The service ``python -m {name}_service``, ready. In a process group of its own: Ctrl-C reaches only us.

    It is told to stop when this process ends, however that happens.
    """
    listen = ["--host", ports.host, "--port", str(ports.port)]
    others = ["--health-port", str(ports.health_port), "--metrics-port", str(ports.metrics_port)]
    command = [sys.executable, "-m", f"{name}_service", *arguments, *listen, *others]
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=log or sys.stderr,
        stderr=log,
        process_group=0,
        env=os.environ | {STOP_WITH_PARENT: str(os.getpid())},
    )
    service = Child(name, process)
    try:
        await service.unless_ended(wait_ready(f"{ports.host}:{ports.health_port}"))
        yield service
    finally:
        await service.stop()


async def wait_ready(address: str) -> None:
    request = health_pb2.HealthCheckRequest(service="readiness")
    async with grpc.aio.insecure_channel(address, options=QUICK_RECONNECT) as channel:
        async for response in health_pb2_grpc.HealthStub(channel).Watch(request, wait_for_ready=True):
            if response.status == health_pb2.HealthCheckResponse.SERVING:
                return


@asynccontextmanager
async def both_services(
    model: str, tokenizer: Ports, executor: Ports, log: IO[str] | None
) -> AsyncIterator[tuple[Child, Child]]:
    """The tokenizer service stops first, so that its calls still have their executor."""
    async with (
        child("executor", executor, log, "--model", model) as first,
        child(
            "tokenizer", tokenizer, log, "--model", model, "--executors", f"{executor.host}:{executor.port}"
        ) as second,
    ):
        yield first, second


def with_free_ports(*several: Ports) -> tuple[Ports, ...]:
    """Each port that is 0 becomes one that is free now, and differs from all the others.

    Raises ConfigError for one that is in use: whoever has it would pass for our own service.
    """
    with ExitStack() as held:

        def chosen(port: int) -> int:
            try:
                return int(held.enter_context(socket.create_server(("", port))).getsockname()[1])
            except OSError as error:
                raise ConfigError(f"port {port} can't be used: {error.strerror}") from error

        return tuple(
            Ports(each.host, chosen(each.port), chosen(each.health_port), chosen(each.metrics_port)) for each in several
        )
