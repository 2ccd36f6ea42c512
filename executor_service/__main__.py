# SPDX-License-Identifier: Apache-2.0
"""Flags and environment become a config; the executor serves until it is told to stop.

Does not know what a setting means: config.py checks it, the part that uses it explains it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import click

if __name__ == "__main__":
    # As a container's first process it would not hear a SIGTERM at all while all of this is imported.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))

from executor_service.app import LOADING, serve
from executor_service.config import DTYPES, ExecutorConfig
from kernels import BACKENDS
from protos.errors import ConfigError, EngineFailure
from protos.server import Ports

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")


@click.command(context_settings={"auto_envvar_prefix": "EXECUTOR", "show_default": True})
@click.option("--model", type=Path, required=True, help="Directory with config.json, safetensors and tokenizer files.")
@click.option("--name", default="", help="Name that callers see; default: the directory's.")
@click.option("--device", default="cpu", help="Where weights and cache live: cpu, npu:0, cuda:0.")
@click.option(
    "--dtype",
    default="auto",
    help=f"Of weights and cache: {', '.join(DTYPES)}; auto is float32 on CPU, elsewhere the model's own.",
)
@click.option("--kernels", default="auto", help=f"Which set of operations runs the model: {', '.join(BACKENDS)}.")
@click.option("--host", default=Ports.host, help="Address to listen on.")
@click.option("--port", default=50061, help="gRPC; 0 takes a free port.")
@click.option("--health-port", default=50062, help="grpc.health.v1 in plain text, for probes.")
@click.option("--metrics-port", default=9102, help="Prometheus, over HTTP.")
@click.option("--threads", default=0, help="CPU threads; 0: what the cgroup allows.")
@click.option("--block-tokens", default=0, help="Tokens in a block of the KV cache; 0: what suits the device.")
@click.option("--num-blocks", default=0, help="Blocks in the KV cache; 0: from the memory that is left after loading.")
@click.option(
    "--kv-memory-fraction", default=0.0, help="Share of that memory that the cache may take; 0: what suits the device."
)
@click.option("--max-step-tokens", default=0, help="Tokens that one step computes at most; 0: what suits the device.")
@click.option("--max-sequences", default=256, help="Sequences that run at once.")
@click.option("--max-context-tokens", default=0, help="Prompt and output together; 0: what model and cache allow.")
@click.option("--max-queued", default=4096, help="Rows that wait before more are refused.")
@click.option("--depth", default=0, help="Steps on the device at once; 0: what suits the device.")
@click.option("--graphs/--no-graphs", default=True, help="Decode steps as device graphs, where the device has them.")
@click.option("--drain-timeout-s", default=30.0, help="After SIGTERM, open calls have so long to end.")
@click.option("--stuck-after-s", default=120.0, help="A step that lasts longer turns health to NOT_SERVING.")
@click.option("--log-level", default="INFO", type=click.Choice(LOG_LEVELS, case_sensitive=False), help="Of stderr.")
def main(log_level: str, host: str, port: int, health_port: int, metrics_port: int, **settings: Any) -> None:
    """Run packserve's executor: weights, KV cache and the fused prefill and decode loop.

    Takes token ids over gRPC and gives token ids back; text is the tokenizer service's. Each flag can also be set in
    the environment: --block-tokens is EXECUTOR_BLOCK_TOKENS.
    """
    logging.basicConfig(level=log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        asyncio.run(serve(ExecutorConfig(ports=Ports(host, port, health_port, metrics_port), **settings)))
    except (ConfigError, EngineFailure) as error:
        sys.exit(f"packserve executor: {error}")
    if any(thread.name == LOADING for thread in threading.enumerate()):
        # Nothing stops it, and torch does not bear that its thread outlives the interpreter.
        logging.shutdown()
        os._exit(0)


if __name__ == "__main__":
    main()
