# SPDX-License-Identifier: Apache-2.0
"""``packserve up``: both services on this machine, for as long as they are wanted.

Says where they listen and what to try. Does not know how they start (children.py) or how they are asked (ask.py).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import click
from rich.console import Console

from protos.cache import cache_directory
from protos.errors import PackserveError
from protos.server import Ports
from tokenizer_service.cli.ask import answer, shown_errors
from tokenizer_service.cli.children import both_services, with_free_ports
from tokenizer_service.cli.options import DEFAULT_MAX_TOKENS
from tokenizer_service.cli.services import demo_model

TOKENIZER_PORTS = Ports("127.0.0.1", 50051, 50052, 9101)
EXECUTOR_PORTS = Ports("127.0.0.1", 50061, 50062, 9102)
FREE_PORTS = Ports("127.0.0.1", 0, 0, 0)

CALLS_TO_TRY = """
packserve serves {model} on {address}. Calls to try:

  {packserve} generate --address {address} "The capital of France is"
  {packserve} chat --address {address}
  grpcurl -plaintext -d '{{"prompts": [{{"text": "The capital of France is"}}], "sampling": {{"max_tokens": 16}}}}' \\
    {address} packserve.v1.TokenizerService/GenerateStream
  curl http://{host}:{metrics}/metrics http://{executor_host}:{executor_metrics}/metrics

Ctrl-C stops both services.
"""


@dataclass(frozen=True)
class Plan:
    """What one ``packserve up`` does."""

    model: str
    tokenizer: Ports
    executor: Ports
    prompt: str | None
    is_chat: bool
    max_tokens: int
    is_serving_on: bool


@click.command()
@click.option("--model", help="A directory in Hugging Face layout.  [default: the demo model, fetched when missing]")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where the tokenizer service listens.")
@click.option("--port", type=int, help="Of the tokenizer service; 0 takes a free one.  [default: 50051]")
@click.option("--health-port", type=int, help="Plaintext health checks alone.  [default: 50052]")
@click.option("--metrics-port", type=int, help="HTTP, /metrics.  [default: 9101]")
@click.option("--executor-port", type=int, help="[default: 50061]")
@click.option("--executor-health-port", type=int, help="[default: 50062]")
@click.option("--executor-metrics-port", type=int, help="[default: 9102]")
@click.option("--prompt", help="Answer this prompt, then stop both services. Takes free ports where none are given.")
@click.option("--chat", "is_chat", is_flag=True, help="--prompt is a message to answer, not a text to continue.")
@click.option("--keep-serving", is_flag=True, help="After --prompt, serve on.")
@click.option("--max-tokens", default=DEFAULT_MAX_TOKENS, show_default=True, help="Of the answer to --prompt.")
def up(
    model: str | None,
    host: str,
    prompt: str | None,
    is_chat: bool,
    keep_serving: bool,
    max_tokens: int,
    **ports: int | None,
) -> None:
    """Start both services on this machine.

    The executor runs the model, the tokenizer service is what callers speak to. Each is a process of its own; further
    settings reach them by environment variables EXECUTOR_... and TOKENIZER_... (packserve executor --help lists them).
    """
    is_serving_on = keep_serving or prompt is None
    with shown_errors():
        tokenizer, executor = chosen_ports(host, is_serving_on, **ports)
    plan = Plan(model or demo_model(), tokenizer, executor, prompt, is_chat, max_tokens, is_serving_on)
    with log_file(plan) as log:
        run_until_signal(carry_out(plan, log), plan)


def chosen_ports(host: str, is_serving_on: bool, **given: int | None) -> tuple[Ports, Ports]:
    def ports(default: Ports, host: str, prefix: str) -> Ports:
        names = ("port", "health_port", "metrics_port")
        found = [given[prefix + name] for name in names]
        chosen = [getattr(default, name) if port is None else port for name, port in zip(names, found, strict=True)]
        return Ports(host, *chosen)

    tokenizer = ports(TOKENIZER_PORTS if is_serving_on else FREE_PORTS, host, "")
    executor = ports(EXECUTOR_PORTS if is_serving_on else FREE_PORTS, "127.0.0.1", "executor_")
    tokenizer, executor = with_free_ports(tokenizer, executor)
    return tokenizer, executor


@contextmanager
def log_file(plan: Plan) -> Iterator[IO[str] | None]:
    """Where the services log: our own stderr while serving; for one prompt a file, kept and named when it fails."""
    if plan.is_serving_on:
        yield None
        return
    path = cache_directory() / "logs" / f"up-{os.getpid()}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w+") as log:
        try:
            yield log
        except click.ClickException as error:
            raise click.ClickException(f"{error.message}\n{last_lines(path)}\nThe whole log: {path}") from error
    path.unlink()


def last_lines(path: Path, num_lines: int = 10) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-num_lines:])


def run_until_signal(work: Coroutine[Any, Any, None], plan: Plan) -> None:
    """SIGINT and SIGTERM stop the services; that ends well while serving, and is an abort before the answer."""
    try:
        asyncio.run(cancelled_by_signals(work))
    except PackserveError as error:
        raise click.ClickException(str(error)) from error
    except asyncio.CancelledError as error:
        if not plan.is_serving_on:
            raise click.Abort from error


async def cancelled_by_signals(work: Coroutine[Any, Any, None]) -> None:
    task = asyncio.create_task(work)
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await task


async def carry_out(plan: Plan, log: IO[str] | None) -> None:
    # Where the services' own log lines are on the terminal, they tell of the progress.
    status = Console(stderr=True, quiet=log is None).status(f"loading {Path(plan.model).name}")
    status.start()
    try:
        async with both_services(plan.model, plan.tokenizer, plan.executor, log) as (executor, tokenizer):
            status.stop()
            await tokenizer.unless_ended(executor.unless_ended(serve(plan)))
    finally:
        status.stop()


async def serve(plan: Plan) -> None:
    address = f"{plan.tokenizer.host}:{plan.tokenizer.port}"
    if plan.prompt is not None:
        await answer(address, plan.prompt, plan.is_chat, temperature=0, max_tokens=plan.max_tokens)
    if plan.is_serving_on:
        click.echo(calls_to_try(plan, address))
        await asyncio.Event().wait()


def calls_to_try(plan: Plan, address: str) -> str:
    return CALLS_TO_TRY.format(
        model=Path(plan.model).name,
        address=address,
        packserve=os.path.relpath(sys.argv[0]),
        host=plan.tokenizer.host,
        metrics=plan.tokenizer.metrics_port,
        executor_host=plan.executor.host,
        executor_metrics=plan.executor.metrics_port,
    )
