# SPDX-License-Identifier: Apache-2.0
"""The executor's series are there before an engine is, and read it when scraped afterwards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from executor_service.metrics import Metrics
from executor_service.scheduling.step import Step
from protos.metrics import new_registry

SCHEDULER = SimpleNamespace(
    running=[1, 2],
    num_blocks=10,
    num_used_blocks=5,
    usage=0.5,
    num_preemptions=3,
    num_prefix_query_tokens=100,
    num_prefix_hit_tokens=40,
    num_failed_rows=1,
)
ENGINE: Any = SimpleNamespace(num_queued=4, step_age_s=1.5, scheduler=SCHEDULER)
GRAMMARS: Any = SimpleNamespace(num_hits=7, num_failed=2)
EXPECTED = {
    "packserve_running_sequences": 2,
    "packserve_waiting_sequences": 4,
    "packserve_step_age_seconds": 1.5,
    "packserve_kv_blocks": 10,
    "packserve_kv_blocks_used": 5,
    "packserve_kv_usage_ratio": 0.5,
    "packserve_preemptions_total": 3,
    "packserve_prefix_query_tokens_total": 100,
    "packserve_prefix_hit_tokens_total": 40,
    "packserve_failed_rows_total": 1,
    "packserve_grammar_hits_total": 7,
    "packserve_grammar_failures_total": 2,
}


def values(metrics: Metrics) -> dict[str, float | None]:
    return {name: metrics.registry.get_sample_value(name) for name in EXPECTED}


def test_series_are_0_until_an_engine_is_watched_and_its_own_then() -> None:
    metrics = Metrics(new_registry(), "tiny")
    assert values(metrics) == dict.fromkeys(EXPECTED, 0)
    metrics.watch(ENGINE, GRAMMARS, {"model": "tiny", "device": "cpu"})
    assert values(metrics) == EXPECTED
    assert metrics.registry.get_sample_value("packserve_model_info", {"model": "tiny", "device": "cpu"}) == 1


def test_vllm_names_are_there_from_the_start_with_their_labels() -> None:
    metrics = Metrics(new_registry(), "tiny")
    labels = {"model_name": "tiny", "engine": "0"}
    assert metrics.registry.get_sample_value("vllm:num_requests_waiting", labels) == 0
    metrics.watch(ENGINE, GRAMMARS, {})
    assert metrics.registry.get_sample_value("vllm:num_requests_waiting", labels) == 4


def test_a_step_counts_its_rows() -> None:
    metrics = Metrics(new_registry(), "tiny")
    row: Any = SimpleNamespace(num_tokens=3)
    metrics.observe_step(Step(1, [row, row]), 0.1)
    assert metrics.registry.get_sample_value("packserve_step_rows_sum") == 2
    assert metrics.registry.get_sample_value("packserve_step_tokens_sum") == 6
