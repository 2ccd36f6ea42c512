# SPDX-License-Identifier: Apache-2.0
"""Real services, Prometheus and Alertmanager with our rules, under load: panels have data, rules evaluate, figures are
right, and alerts arrive.

The rules are rendered with short waits, and the model is a scripted one, so that what the services count is known.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import statistics
import subprocess
import time
import urllib.parse
import urllib.request
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import pytest

from k8s.monitoring import knobs, render
from k8s.monitoring.local import picture
from k8s.monitoring.local.load import Load
from k8s.monitoring.local.page_server import serving_page
from k8s.monitoring.local.panels import Target, read_panels
from k8s.monitoring.local.programs import ALERTMANAGER, CHROMIUM, PROMETHEUS, ensure
from k8s.monitoring.local.stack import Stack, running_stack
from protos.client import Client
from protos.errors import ConfigError, DeadlineExceeded, InvalidRequest
from protos.metrics import SECONDS_BUCKETS
from tests.monitoring.letters import write_letters_model
from tests.monitoring.test_scrape import ALIASES

pytestmark = pytest.mark.slow

SETTINGS = {"EXECUTOR_THREADS": "1", "EXECUTOR_NUM_BLOCKS": "512", "EXECUTOR_MAX_STEP_TOKENS": "64"}
NUM_TINY, NUM_AT_ONCE, MAX_TINY_S = 10_000, 32, 45


def quick_rendering(folder: Path) -> Path:
    """As rendered for the local stack, but with every wait short."""
    given = knobs.load()
    alerts = {name: replace(alert, for_="2s") for name, alert in given.alerts.items()}
    alerts["ExecutorLost"] = replace(alerts["ExecutorLost"], window="2s")
    quick = replace(given, alerts=alerts, local=replace(given.local, interval="1s"))
    folder.mkdir()
    for path, text in render.outputs(quick).items():
        if path.parent == render.RENDERED:
            (folder / path.name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    try:
        ensure(PROMETHEUS, ALERTMANAGER, CHROMIUM)
    except ConfigError as error:
        pytest.skip(str(error))
    folder: Path = tmp_path_factory.mktemp("stack")
    model = write_letters_model(folder / "model")
    (folder / "run").mkdir()
    with mock.patch.dict(os.environ), asyncio.Runner() as runner:
        entered = running_stack(model, folder / "run", SETTINGS, quick_rendering(folder / "rendered"))
        running = runner.run(entered.__aenter__())
        try:
            yield running
        finally:
            runner.run(entered.__aexit__(None, None, None))


def get(url: str, path: str, **parameters: object) -> Any:
    with urllib.request.urlopen(f"{url}{path}?{urllib.parse.urlencode(parameters)}") as response:
        return json.load(response)


def query(stack: Stack, expr: str) -> dict[str, float]:
    """Value by the labels that are left, put together."""
    result = get(stack.prometheus_url, "/api/v1/query", query=expr)["data"]["result"]
    return {",".join(each["metric"].values()): float(each["value"][1]) for each in result}


async def scraped(stack: Stack) -> float:
    """A moment at which Prometheus knows of both services all that had happened when it was asked for."""
    begun_s = time.time()
    for _ in range(100):
        last_s = query(stack, "timestamp(packserve_ready)").values()
        if len(last_s) == len(stack.services.pids) and min(last_s) > begun_s:
            return time.time()
        await asyncio.sleep(0.2)
    raise AssertionError(f"scraped last at {last_s}")


def added(series: str, begin_s: float, end_s: float) -> str:
    """By how much a counter grew, without rate's extrapolation."""
    return f"({series} @ {end_s} - {series} @ {begin_s})"


@contextmanager
def paused(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def leave_and_run_late(client: Client, load: Load, executor_pid: int) -> None:
    """A call whose caller leaves and one whose time runs out, both before their first token."""
    prompt = list(b"nothing comes")
    with paused(executor_pid):
        call = asyncio.create_task(client.generate(prompt, max_tokens=4))
        await asyncio.sleep(0.5)
        call.cancel()
        with pytest.raises(DeadlineExceeded):
            await client.generate(prompt, max_tokens=4, timeout_s=0.5)
    load.tally.requests.update(["cancelled", "expired"])
    load.tally.num_prompt_tokens += 2 * len(prompt)


async def test_figures_agree_with_the_callers_own_tally(stack: Stack) -> None:
    """Requests by outcome, and tokens of prompts and answers: exactly."""
    begin_s = await scraped(stack)
    async with Client(stack.services.address) as client:
        load = Load(client)
        kinds = [kind for kind in load.kinds if kind != load.leave]
        await asyncio.gather(*(kind(Random(seed)) for seed in range(4) for kind in kinds))
        await leave_and_run_late(client, load, stack.services.pids["executor"])
    end_s = await scraped(stack)
    requests = query(stack, f"sum by (outcome) {added('packserve_requests_total', begin_s, end_s)}")
    assert {outcome: number for outcome, number in requests.items() if number} == load.tally.requests
    assert load.tally.requests.keys() == {"stop", "length", "refused", "cancelled", "expired"}
    for name, number in (("prompt", load.tally.num_prompt_tokens), ("generation", load.tally.num_generated_tokens)):
        assert list(query(stack, added(f"packserve_{name}_tokens_total", begin_s, end_s)).values()) == [number]


async def test_median_of_first_tokens_lies_in_the_callers_bucket(stack: Stack) -> None:
    """As histogram_quantile says it, and as callers measured it on their side of the wire. Where an edge lies between
    the two by chance, longer prompts are asked with."""
    for num_repeats in (100, 140, 190):
        shown_s, measured_s = await medians_of_first_tokens(stack, num_repeats)
        print(f"first token, median: {1e3 * shown_s:.1f} ms by the dashboard, {1e3 * measured_s:.1f} ms by the callers")
        if bisect_left(SECONDS_BUCKETS, shown_s) == bisect_left(SECONDS_BUCKETS, measured_s):
            return
    raise AssertionError("in other buckets for each length")


async def medians_of_first_tokens(stack: Stack, num_repeats: int) -> tuple[float, float]:
    begin_s = await scraped(stack)
    async with Client(stack.services.address) as client:
        load = Load(client)
        for at in range(20):
            await load.stream_of(f"{at} {num_repeats} " * num_repeats, max_tokens=2)
    end_s = await scraped(stack)
    buckets = added("packserve_time_to_first_token_seconds_bucket", begin_s, end_s)
    (shown_s,) = query(stack, f"histogram_quantile(0.5, sum by (le) {buckets})").values()
    return shown_s, statistics.median(load.tally.first_tokens_s)


async def test_every_panel_has_data_under_load(stack: Stack) -> None:
    """Each expression of both dashboards has finite values, but for those of npu-exporter's series; and the page draws
    them, as it says itself in a real browser."""
    async with Client(stack.services.address) as client:
        load = asyncio.create_task(Load(client).run(4, pause_s=0.1))
        try:
            await asyncio.sleep(15)
            targets = [target for panel in read_panels() for target in panel.targets]
            needs_exporter = {target.expr for target in targets if target.needs_npu_exporter}
            empty = {target.expr for target in targets if not await asyncio.to_thread(has_data, stack, target)}
            with serving_page(stack.prometheus_url) as page:
                drawn = await asyncio.to_thread(picture.look, page)
        finally:
            load.cancel()
            await asyncio.gather(load, return_exceptions=True)
    assert empty == needs_exporter
    assert len(targets) - len(empty) > 60
    assert (drawn.empty, drawn.num_panels) == ((), len(read_panels()))


def has_data(stack: Stack, target: Target) -> bool:
    now_s = time.time()
    asked = {"query": target.expr, "start": now_s - 10, "end": now_s, "step": 1}
    series = get(stack.prometheus_url, "/api/v1/query_range", **asked)["data"]["result"]
    return any(math.isfinite(float(value)) for each in series for _, value in each["values"])


async def test_ready_replicas_are_told_apart_by_service(stack: Stack) -> None:
    """One tokenizer and one executor: neither dashboard counts the other's."""
    await scraped(stack)
    ready = [
        panel.targets[0].expr for panel in read_panels() if panel.kind == "stat" and panel.title.startswith("Ready")
    ]
    assert [list(query(stack, expr).values()) for expr in ready] == [[1], [1]]


async def test_every_rule_evaluates(stack: Stack) -> None:
    await scraped(stack)
    await asyncio.sleep(2)
    groups = get(stack.prometheus_url, "/api/v1/rules")["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"} == {}
    expected = [rule for group in render_groups() for rule in group["rules"]]
    assert sorted(rule["name"] for rule in rules) == sorted(rule.get("alert", rule.get("record")) for rule in expected)


def render_groups() -> list[dict[str, Any]]:
    given = knobs.load()
    return [*render.recording_groups(given), *render.alert_groups(given)]


@pytest.mark.parametrize("service", ALIASES)
def test_linter_finds_nothing_but_the_aliases_in_a_live_scrape(stack: Stack, service: str) -> None:
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=scrape(stack, service), capture_output=True, text=True, check=False
    )
    assert {line.split(" ", 1)[0] for line in done.stderr.splitlines()} == ALIASES[service].keys()


def scrape(stack: Stack, service: str) -> str:
    return urllib.request.urlopen(stack.services.metrics_urls[service]).read().decode()


def series_names(stack: Stack) -> set[str]:
    lines = [line for service in stack.services.pids for line in scrape(stack, service).splitlines()]
    return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}


async def test_number_of_series_is_constant(stack: Stack) -> None:
    """B62: over many calls, each with an id and a text of its own, half of them with a model's name of their own."""
    before = series_names(stack)
    numbers = iter(range(NUM_TINY))
    end_s = time.monotonic() + MAX_TINY_S
    async with Client(stack.services.address) as client:
        await asyncio.gather(*(call_on(client, numbers, end_s) for _ in range(NUM_AT_ONCE)))
    num_calls = next(numbers, NUM_TINY)
    print(f"{num_calls} calls in {MAX_TINY_S - (end_s - time.monotonic()):.0f} s, {len(before)} series")
    assert series_names(stack) == before
    assert num_calls >= NUM_TINY // 5


async def call_on(client: Client, numbers: Iterator[int], end_s: float) -> None:
    for number in numbers:
        if time.monotonic() > end_s:
            return
        own: dict[str, Any] = {"model": f"model-{number}"} if number % 2 else {}
        try:
            await client.generate(f"text {number}", request_id=f"id-{number}", max_tokens=1, **own)
        except InvalidRequest:
            assert own


async def test_alerts_of_a_lost_executor_reach_the_alertmanager(stack: Stack) -> None:
    """The last test of this module: the executor is killed."""
    expected = {"PackserveUnavailable", "PackserveReplicaLost", "PackserveExecutorLost", "PackserveNotReady"}
    assert active_alerts(stack) & expected == set()
    os.kill(stack.services.pids["executor"], signal.SIGKILL)
    for _ in range(150):
        if active_alerts(stack) >= expected:
            return
        await asyncio.sleep(0.2)
    raise AssertionError(active_alerts(stack))


def active_alerts(stack: Stack) -> set[str]:
    return {alert["labels"]["alertname"] for alert in get(stack.alertmanager_url, "/api/v2/alerts")}
