# SPDX-License-Identifier: Apache-2.0
"""Both services as they are deployed, and what a load does to them: times of ids, CPU seconds, series.

Does not know which question a benchmark asks.
"""

from __future__ import annotations

import asyncio
import os
import re
import statistics
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from protos.client import Client
from protos.server import Ports
from tokenizer_service.cli.children import both_services, with_free_ports

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
FREE_PORTS = Ports("127.0.0.1", 0, 0, 0)


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


@dataclass(frozen=True)
class Services:
    address: str
    pids: dict[str, int]
    metrics_urls: dict[str, str]

    def cpu_seconds(self) -> dict[str, float]:
        return {name: cpu_seconds(pid) for name, pid in self.pids.items()}

    def series_sum(self, service: str, name: str) -> float:
        """Sum of a histogram's observations, in its unit."""
        text = urllib.request.urlopen(self.metrics_urls[service]).read().decode()
        return sum(float(value) for value in re.findall(rf"^{name}_sum(?:{{.*?}})? (\S+)", text, re.MULTILINE))


@asynccontextmanager
async def running_services(model: Path, log_path: Path, **environment: str) -> AsyncIterator[Services]:
    os.environ |= environment
    tokenizer, executor = with_free_ports(FREE_PORTS, FREE_PORTS)
    with log_path.open("w") as log:
        async with both_services(str(model), tokenizer, executor, log) as (executor_child, tokenizer_child):
            yield Services(
                f"127.0.0.1:{tokenizer.port}",
                {"tokenizer": tokenizer_child.process.pid, "executor": executor_child.process.pid},
                {
                    "tokenizer": f"http://127.0.0.1:{tokenizer.metrics_port}/metrics",
                    "executor": f"http://127.0.0.1:{executor.metrics_port}/metrics",
                },
            )


@dataclass
class Load:
    """What one round brought. token_times_s: for each stream, when each of its ids came, from the round's start."""

    token_times_s: list[list[float]] = field(default_factory=list)
    wall_s: float = 0.0
    cpu_s: dict[str, float] = field(default_factory=dict)
    tokenize_s: float = 0.0

    @property
    def num_tokens(self) -> int:
        return sum(len(times) for times in self.token_times_s)

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.wall_s

    @property
    def ttfts_s(self) -> list[float]:
        return [times[0] for times in self.token_times_s]

    @property
    def gaps_s(self) -> list[float]:
        return [b - a for times in self.token_times_s for a, b in pairwise(times)]


async def stream_times(client: Client, prompt: Any, start_s: float, **sampling: Any) -> list[float]:
    times: list[float] = []
    async for choice in client.generate_stream(prompt, **sampling):
        times += [time.perf_counter() - start_s] * len(choice.token_ids)
    return times


async def run_load(services: Services, prompts: Sequence[Any], **sampling: Any) -> Load:
    """All prompts at once, one stream each, over one channel."""
    async with Client(services.address) as client:
        cpu_before = services.cpu_seconds()
        tokenize_before = services.series_sum("tokenizer", "packserve_tokenize_seconds")
        start_s = time.perf_counter()
        times = await asyncio.gather(*(stream_times(client, prompt, start_s, **sampling) for prompt in prompts))
        wall_s = time.perf_counter() - start_s
        cpu_after = services.cpu_seconds()
        tokenize_s = services.series_sum("tokenizer", "packserve_tokenize_seconds") - tokenize_before
    cpu_s = {name: cpu_after[name] - cpu_before[name] for name in cpu_after}
    return Load(list(times), wall_s, cpu_s, tokenize_s)


def percentile(values: Sequence[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(percent / 100 * (len(ordered) - 1)))]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)
