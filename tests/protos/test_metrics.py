# SPDX-License-Identifier: Apache-2.0
"""A series shown under a second name keeps its samples and its type."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from protos.metrics import SECONDS_BUCKETS, Alias, AliasCollector, FunctionCounter, new_registry, vllm_labels


def scrape(registry: CollectorRegistry) -> str:
    return generate_latest(registry).decode()


def test_histogram_alias_has_every_sample_and_the_constant_labels() -> None:
    registry = new_registry()
    seconds = Histogram("packserve_wait_seconds", "Waiting.", buckets=(1, 2), registry=registry)
    registry.register(AliasCollector((Alias("vllm:wait_seconds", seconds),), vllm_labels("tiny")))
    seconds.observe(1.5)

    text = scrape(registry)
    assert "# TYPE vllm:wait_seconds histogram" in text
    assert 'vllm:wait_seconds_bucket{engine="0",le="2.0",model_name="tiny"} 1.0' in text
    assert 'vllm:wait_seconds_count{engine="0",model_name="tiny"} 1.0' in text
    assert "packserve_wait_seconds_count 1.0" in text


def test_counter_alias_renames_labels_and_leaves_other_meanings_out() -> None:
    registry = CollectorRegistry()
    ended = Counter("packserve_ended", "Ended.", ["outcome"], registry=registry)
    alias = Alias("vllm:success", ended, {"outcome": "reason"}, lambda labels: labels["outcome"] == "stop")
    registry.register(AliasCollector((alias,), {"engine": "0"}))
    ended.labels("stop").inc(3)
    ended.labels("error").inc()

    lines = [line for line in scrape(registry).splitlines() if line.startswith("vllm:")]
    assert lines == ['vllm:success_total{engine="0",reason="stop"} 3.0']


def test_buckets_reach_from_a_short_text_to_a_long_deadline() -> None:
    assert SECONDS_BUCKETS[0] <= 0.0005
    assert SECONDS_BUCKETS[-1] >= 7200
    assert list(SECONDS_BUCKETS) == sorted(set(SECONDS_BUCKETS))


def test_registry_has_the_process_cpu_seconds() -> None:
    assert "process_cpu_seconds_total" in scrape(new_registry())


def test_counter_that_is_kept_elsewhere_is_read_when_scraped() -> None:
    registry, total = CollectorRegistry(), [1.0]
    FunctionCounter("packserve_things", "Things.", registry, lambda: total[0])
    total[0] = 5.0
    assert registry.get_sample_value("packserve_things_total") == 5.0
