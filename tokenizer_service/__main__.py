# SPDX-License-Identifier: Apache-2.0
"""Flags and environment become a config; the tokenizer service serves until it is told to stop.

Does not know what a setting means: config.py checks it, the part that uses it explains it.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from pathlib import Path

import click

if __name__ == "__main__":
    # As a container's first process it would not hear a SIGTERM at all while all of this is imported.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))

from protos.errors import ConfigError
from protos.server import Ports
from tokenizer_service.app import serve
from tokenizer_service.config import DEFAULT_EXECUTOR, TokenizerConfig
from tokenizer_service.link import STUCK_AFTER_S

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


@click.command(context_settings={"auto_envvar_prefix": "TOKENIZER", "show_default": True})
@click.option("--model", type=Path, required=True, help="Directory with tokenizer.json or tokenizer.model.")
@click.option("--name", default="", help="Name that callers see; default: the directory's.")
@click.option(
    "--executors",
    default=DEFAULT_EXECUTOR,
    help="Separated by commas. host:port is one executor; dns:///name:port is each address behind a name, looked up "
    "every few seconds.",
)
@click.option("--host", default=Ports.host, help="Address to listen on; the default is every one.")
@click.option("--port", default=50051, help="gRPC; 0 takes a free port.")
@click.option("--health-port", default=50052, help="grpc.health.v1 in plain text, for probes.")
@click.option("--metrics-port", default=9101, help="Prometheus, over HTTP.")
@click.option("--drain-timeout-s", default=30.0, help="After SIGTERM, open calls have so long to end.")
@click.option(
    "--executor-stuck-after-s", default=STUCK_AFTER_S, help="An executor whose step lasts longer gets no new rows."
)
@click.option(
    "--max-connection-age-s",
    default=0.0,
    help="After so long a caller's connection closes when its calls have ended, so that new ones spread; 0: never.",
)
@click.option("--log-level", default="INFO", type=click.Choice(LOG_LEVELS, case_sensitive=False), help="Of stderr.")
def main(
    model: Path,
    name: str,
    executors: str,
    host: str,
    port: int,
    health_port: int,
    metrics_port: int,
    drain_timeout_s: float,
    executor_stuck_after_s: float,
    max_connection_age_s: float,
    log_level: str,
) -> None:
    """Run packserve's tokenizer service: text in, packed token ids to the executors, text out.

    It needs no executor to start: it is ready while at least one takes requests. Each flag can also be set in the
    environment: --health-port is TOKENIZER_HEALTH_PORT. SIGTERM lets open calls end; a second one does not.
    """
    logging.basicConfig(level=log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    targets = tuple(target.strip() for target in executors.split(",") if target.strip())
    try:
        ports = Ports(host, port, health_port, metrics_port)
        config = TokenizerConfig(
            model, name, targets, ports, drain_timeout_s, executor_stuck_after_s, max_connection_age_s
        )
        asyncio.run(serve(config))
    except ConfigError as error:
        sys.exit(f"packserve tokenizer: {error}")


if __name__ == "__main__":
    main()
