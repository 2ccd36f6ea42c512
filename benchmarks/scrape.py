# SPDX-License-Identifier: Apache-2.0
"""What does a scrape cost a service? python -m benchmarks.scrape --model DIR [--rounds 8]

CPU of the whole process, idle but for scrapes as Prometheus makes them. Of the rounds the least and the median are
printed: others are longer for what else keeps the machine busy.
"""

from __future__ import annotations

import asyncio
import tempfile
import urllib.request
from pathlib import Path

import click

from benchmarks.services import Services, median, running_services

NUM_SCRAPES = 40
HEADERS = {
    "Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
    "Accept-Encoding": "gzip",
}


def scrape_cpu_s(services: Services, service: str) -> float:
    request = urllib.request.Request(services.metrics_urls[service], headers=HEADERS)
    before = services.cpu_seconds()[service]
    for _ in range(NUM_SCRAPES):
        urllib.request.urlopen(request).read()
    return (services.cpu_seconds()[service] - before) / NUM_SCRAPES


async def measure(model: Path, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with running_services(model, Path(folder, "log")) as services:
            for service in services.metrics_urls:
                costs_s = [await asyncio.to_thread(scrape_cpu_s, services, service) for _ in range(rounds)]
                print(f"{service}: {1e3 * min(costs_s):.2f} ms of CPU a scrape, median {1e3 * median(costs_s):.2f}")


@click.command()
@click.option("--model", type=Path, required=True)
@click.option("--rounds", default=8, show_default=True)
def main(model: Path, rounds: int) -> None:
    asyncio.run(measure(model, rounds))


if __name__ == "__main__":
    main()
