# SPDX-License-Identifier: Apache-2.0
"""The whole stack by one command, until Ctrl-C; or for some seconds, and then a picture of it.

Says where to look. The parts start themselves (stack.py, load.py, page_server.py).
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import click

from k8s.monitoring.local import picture
from k8s.monitoring.local.load import Load
from k8s.monitoring.local.page_server import serving_page
from k8s.monitoring.local.programs import ALERTMANAGER, CHROMIUM, PROMETHEUS, ensure
from k8s.monitoring.local.stack import Stack, running_stack
from protos.client import Client
from protos.errors import PackserveError
from tokenizer_service.cli.ask import shown_errors
from tokenizer_service.cli.services import demo_model
from tokenizer_service.cli.up import cancelled_by_signals, last_lines

# Small enough that a handful of callers wait for places and blocks, and that the machine stays usable.
SETTINGS = {"EXECUTOR_THREADS": "1", "EXECUTOR_MAX_SEQUENCES": "8", "EXECUTOR_NUM_BLOCKS": "64"}
WHERE = """
  dashboards    {page}
  Prometheus    {prometheus}
  Alertmanager  {alertmanager}
  services      {address}, {metrics}

{callers} callers ask the demo model. Ctrl-C ends everything.
"""


@click.command()
@click.option("--model", type=Path, help="A directory in Hugging Face layout.  [default: the demo model]")
@click.option("--callers", default=4, type=click.IntRange(1), show_default=True, help="How many ask at once.")
@click.option("--port", default=0, help="Of the page; 0 takes a free one.")
@click.option("--for", "duration_s", type=float, help="End after so many seconds of load.")
@click.option("--screenshot", type=Path, help="At the end a picture; status 1 where a panel lacks data.")
def main(model: Path | None, callers: int, port: int, duration_s: float | None, screenshot: Path | None) -> None:
    """Watch both services under load on this machine: real Prometheus and Alertmanager, our rules, our dashboards."""
    with shown_errors():
        if screenshot and duration_s is None:
            raise click.UsageError("--screenshot needs --for: panels fill within a minute")
        ensure(PROMETHEUS, ALERTMANAGER, *([CHROMIUM] if screenshot else []))
        work = watch(model or Path(demo_model()), callers, port, duration_s, screenshot)
        try:
            asyncio.run(cancelled_by_signals(work))
        except asyncio.CancelledError:
            click.echo("stopped")


async def watch(model: Path, callers: int, port: int, duration_s: float | None, screenshot: Path | None) -> None:
    async with stack_in_own_folder(model) as stack, Client(stack.services.address) as client:
        with serving_page(stack.prometheus_url, port) as page:
            click.echo(where(stack, page, callers))
            load = asyncio.create_task(Load(client).run(callers))
            try:
                done, _ = await asyncio.wait({load}, timeout=duration_s)
                for ended in done:
                    ended.result()
                if screenshot:
                    await take_picture(page, screenshot)
            finally:
                load.cancel()
                await asyncio.gather(load, return_exceptions=True)


@asynccontextmanager
async def stack_in_own_folder(model: Path) -> AsyncIterator[Stack]:
    """Shows the ends of the logs where something does not start."""
    settings = {name: os.environ.get(name, value) for name, value in SETTINGS.items()}
    with tempfile.TemporaryDirectory(prefix="packserve-monitor-") as folder:
        try:
            async with running_stack(model, Path(folder), environment=settings) as stack:
                yield stack
        except PackserveError as error:
            raise click.ClickException(f"{error}\n{ends_of_logs(Path(folder))}") from error


def ends_of_logs(folder: Path) -> str:
    return "\n".join(f"{path.name}:\n{last_lines(path)}" for path in sorted(folder.rglob("*.log")))


async def take_picture(page: str, file: Path) -> None:
    drawn = await asyncio.to_thread(picture.take, page, file)
    click.echo(f"{file}: {drawn.num_panels} panels")
    if drawn.empty:
        raise click.ClickException("no data: " + "; ".join(drawn.empty))


def where(stack: Stack, page: str, callers: int) -> str:
    return WHERE.format(
        page=page,
        prometheus=stack.prometheus_url,
        alertmanager=stack.alertmanager_url,
        address=stack.services.address,
        metrics=" ".join(stack.services.metrics_urls.values()),
        callers=callers,
    )


if __name__ == "__main__":
    main()
