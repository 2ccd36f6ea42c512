# SPDX-License-Identifier: Apache-2.0
"""B62: buckets tell milliseconds of encoding from minutes of generation, and no quantile sticks to the last edge."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from prometheus_client import CollectorRegistry

from executor_service.metrics import SIZE_BUCKETS
from protos.metrics import SECONDS_BUCKETS
from tokenizer_service.metrics import CallRecord, Metrics


def quantile(registry: CollectorRegistry, name: str, share: float) -> float:
    """As histogram_quantile: linear within a bucket; the last finite edge for what is beyond."""
    samples = [s for family in registry.collect() for s in family.samples if s.name == f"{name}_bucket"]
    counts = {float(sample.labels["le"]): sample.value for sample in samples}
    rank, below, low = share * counts[math.inf], 0.0, 0.0
    for edge, count in counts.items():
        if count >= rank:
            return low if edge == math.inf else low + (edge - low) * (rank - below) / (count - below)
        below, low = count, edge
    raise AssertionError("the last bucket holds all")


@pytest.mark.parametrize("seconds", [0.00015, 0.002, 0.7, 200.0, 3000.0])
def test_quantiles_are_within_a_factor_of_three(seconds: float) -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry, "model")
    for _ in range(100):
        metrics.request.observe(seconds)
    for share in (0.5, 0.99):
        assert seconds / 3 < quantile(registry, "packserve_request_seconds", share) < seconds * 3


def test_short_and_long_calls_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of 2 ms and one of 200 s, as the service times them."""
    registry = CollectorRegistry()
    metrics = Metrics(registry, "model")
    now_s = [0.0]
    monkeypatch.setattr("tokenizer_service.metrics.time.monotonic", lambda: now_s[0])
    for seconds in (0.002, 200.0):
        with CallRecord(metrics, None):
            now_s[0] += seconds
    assert quantile(registry, "packserve_request_seconds", 0.5) <= 0.005
    assert 100 < quantile(registry, "packserve_request_seconds", 0.99) <= 300


@pytest.mark.parametrize("edges", [SECONDS_BUCKETS, SIZE_BUCKETS])
def test_edges_are_no_further_apart_than_a_factor_of_three(edges: tuple[float, ...]) -> None:
    assert max(high / low for low, high in pairwise(edges)) <= 3
