# SPDX-License-Identifier: Apache-2.0
"""Several executors and replicas of the tokenizer service, each a process with a loopback address of its own.

As in a cluster, all of one service listen on the same port of different addresses, and the replicas find the executors
by one name.
"""

from __future__ import annotations

import asyncio
import os
import re
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from protos.server import Ports
from tests.fixtures.byte_tokenizer import write_byte_tokenizer
from tests.fixtures.scripted_model import write_scripted_model
from tokenizer_service.cli.children import Child, child, with_free_ports

EXECUTORS = "executors.test"
# Each letter has the next one behind it, without end.
RING = b"abcdefghijklmnopqrstuvwxyz"


def write_ring_model(directory: Path) -> Path:
    followers = zip(RING, RING[1:] + RING[:1], strict=True)
    write_scripted_model(directory, {a: {b: 1.0} for a, b in followers}, eos=None)
    return write_byte_tokenizer(directory)


def scrape(ports: Ports) -> dict[str, float]:
    """Value of each series, labels in its name as they are shown."""
    text = urllib.request.urlopen(f"http://{ports.host}:{ports.metrics_port}/metrics").read().decode()
    return {name: float(value) for name, value in re.findall(r"^([^#\s{]+(?:{.*})?) (\S+)$", text, re.MULTILINE)}


def num_calls(ports: Ports) -> int:
    """Calls that a replica has ended, however they ended."""
    return round(sum(value for name, value in scrape(ports).items() if name.startswith("packserve_requests_total")))


def num_rows(ports: Ports) -> int:
    """Rows that an executor has begun."""
    return round(scrape(ports)["packserve_queue_seconds_count"])


@dataclass
class Fleet:
    model: Path
    folder: Path
    executors: dict[str, Child] = field(default_factory=dict)
    replicas: dict[str, Child] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._executor_ports, self._replica_ports = with_free_ports(Ports("127.0.0.1"), Ports("127.0.0.1"))
        self._stack = AsyncExitStack()
        self._log = (self.folder / "log").open("w")
        self._names = self.folder / "names"

    @property
    def replica_port(self) -> int:
        return self._replica_ports.port

    def executor_ports(self, host: str) -> Ports:
        return replace(self._executor_ports, host=host)

    def replica_ports(self, host: str) -> Ports:
        return replace(self._replica_ports, host=host)

    def rows_by_executor(self) -> dict[str, int]:
        return {host: num_rows(self.executor_ports(host)) for host in self.executors}

    def calls_by_replica(self) -> dict[str, int]:
        return {host: num_calls(self.replica_ports(host)) for host in self.replicas}

    async def add_executors(self, *hosts: str) -> None:
        """They stand behind the name when they are ready, as in a headless Service."""
        started = [self._start("executor", self.executor_ports(host)) for host in hosts]
        self.executors |= dict(zip(hosts, await asyncio.gather(*started), strict=True))
        self._publish()

    async def add_replicas(self, *hosts: str) -> None:
        executors = f"dns:///{EXECUTORS}:{self._executor_ports.port}"
        started = [self._start("tokenizer", self.replica_ports(host), "--executors", executors) for host in hosts]
        self.replicas |= dict(zip(hosts, await asyncio.gather(*started), strict=True))

    async def kill(self, children: dict[str, Child], host: str) -> None:
        """As a machine that is gone: no drain. The name keeps the address for a while, as it does there."""
        dead = children.pop(host)
        dead.process.kill()
        await dead.process.wait()

    async def stop(self, children: dict[str, Child], host: str) -> None:
        """As a roll-out does: SIGTERM, drain, end."""
        await children.pop(host).stop()

    async def _start(self, service: str, ports: Ports, *arguments: str) -> Child:
        running = child(service, ports, self._log, "--model", str(self.model), *arguments)
        return await self._stack.enter_async_context(running)

    def _publish(self) -> None:
        self._names.write_text(f"{EXECUTORS} {' '.join(self.executors)}\n")

    async def aclose(self) -> None:
        await self._stack.aclose()
        self._log.close()


@asynccontextmanager
async def running_fleet(
    folder: Path, executors: list[str], replicas: list[str], **settings: str
) -> AsyncIterator[Fleet]:
    """settings: of either service, such as EXECUTOR_NUM_BLOCKS="8"."""
    names = Path(__file__).parent / "names"
    before = dict(os.environ)
    os.environ |= {"EXECUTOR_THREADS": "1", "PYTHONPATH": str(names), "TEST_NAMES": str(folder / "names")} | settings
    fleet = Fleet(write_ring_model(folder / "model"), folder)
    try:
        await fleet.add_executors(*executors)
        await fleet.add_replicas(*replicas)
        yield fleet
    finally:
        await fleet.aclose()
        os.environ.clear()
        os.environ.update(before)
