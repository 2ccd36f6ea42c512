# SPDX-License-Identifier: Apache-2.0
"""The services, Prometheus and Alertmanager as processes of one stack on loopback: started in order, stopped together.

Does not know what is asked of them.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.services import FREE_PORTS, Services, running_services
from k8s.monitoring.local.panels import RENDERED
from k8s.monitoring.local.programs import ALERTMANAGER, PROMETHEUS
from tokenizer_service.cli.children import Child, with_free_ports

# Ends with us, however we end.
BOUND_TO_US = ("setpriv", "--pdeathsig", "TERM")


@dataclass(frozen=True)
class Stack:
    services: Services
    prometheus_url: str
    alertmanager_url: str


@asynccontextmanager
async def running_stack(
    model: Path, folder: Path, environment: Mapping[str, str], rendered: Path = RENDERED
) -> AsyncIterator[Stack]:
    """folder: empty; takes logs, configuration and data. environment: settings of either service."""
    configuration = folder / "configuration"
    shutil.copytree(rendered, configuration)
    async with running_services(model, folder / "services.log", **environment) as services:
        (free,) = with_free_ports(FREE_PORTS)
        prometheus, alertmanager = f"127.0.0.1:{free.port}", f"127.0.0.1:{free.health_port}"
        write_targets(configuration / "targets", services, alertmanager)
        on_alerts = (f"--config.file={configuration}/alertmanager.yaml", f"--storage.path={folder}/alerts")
        on_series = (f"--config.file={configuration}/prometheus.yaml", f"--storage.tsdb.path={folder}/series")
        async with (
            server(ALERTMANAGER, alertmanager, folder, *on_alerts, "--cluster.listen-address="),
            server(PROMETHEUS, prometheus, folder, *on_series),
        ):
            await scraped(f"http://{prometheus}", len(services.metrics_urls))
            yield Stack(services, f"http://{prometheus}", f"http://{alertmanager}")


def write_targets(folder: Path, services: Services, alertmanager: str) -> None:
    """One file for each job of prometheus.yaml, and for the Alertmanager."""
    folder.mkdir()
    jobs = {f"packserve-{name}": urlsplit(url).netloc for name, url in services.metrics_urls.items()}
    for name, address in (jobs | {"alertmanager": alertmanager}).items():
        (folder / f"{name}.json").write_text(json.dumps([{"targets": [address]}]))


@asynccontextmanager
async def server(program: str, address: str, folder: Path, *arguments: str) -> AsyncIterator[Child]:
    """A program of the Prometheus project, ready."""
    with (folder / f"{program}.log").open("w") as log:
        process = await asyncio.create_subprocess_exec(
            *BOUND_TO_US,
            program,
            f"--web.listen-address={address}",
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            process_group=0,
        )
        child = Child(program, process)
        try:
            await child.unless_ended(answering(f"http://{address}/-/ready"))
            yield child
        finally:
            await child.stop()


async def scraped(prometheus_url: str, num_replicas: int) -> None:
    """Until each was scraped once: what is counted before, no rate shows."""
    while True:
        if num_replicas_up(prometheus_url) == num_replicas:
            return
        await asyncio.sleep(0.1)


def num_replicas_up(prometheus_url: str) -> int:
    with urllib.request.urlopen(f"{prometheus_url}/api/v1/query?query=up==1") as response:  # noqa: S310
        return len(json.load(response)["data"]["result"])


async def answering(url: str) -> None:
    while True:
        try:
            await asyncio.to_thread(urllib.request.urlopen, url, timeout=5)
        except (urllib.error.URLError, ConnectionError):
            await asyncio.sleep(0.1)
        else:
            return
