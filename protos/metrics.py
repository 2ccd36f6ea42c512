# SPDX-License-Identifier: Apache-2.0
"""What the metrics of every server share: the registry, bucket edges, and a second name for a series.

Does not know which series a service has; those are declared in its own metrics.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    GCCollector,
    Info,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from protos.errors import ConfigError

# From a short text's encoding to the longest deadline that a caller may sensibly set.
SECONDS_BUCKETS = (
    *(0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0),
)


def new_registry() -> CollectorRegistry:
    """Holds the process's own series (CPU seconds, memory, garbage collection) and nothing else yet.

    Raises ConfigError where values would be kept in files: a replica is one process, and a file of a run before it
    would be added to its counts.
    """
    for name in ("PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"):
        if folder := os.environ.get(name):
            raise ConfigError(f"{name}={folder}: must not be set, each replica is one process")
    disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    return registry


def watch_server(registry: CollectorRegistry, service: str, is_serving: Callable[[], bool]) -> None:
    """What every server tells of itself. service: tokenizer or executor."""
    ready = Gauge("packserve_ready", "Whether readiness is SERVING, 1 or 0.", registry=registry)
    ready.set_function(is_serving)
    build = Info("packserve_build", "Which service this is, and of which version.", registry=registry)
    build.info({"service": service, "version": installed_version()})


def installed_version() -> str:
    """Of this distribution; a checkout on the path is none."""
    try:
        return version("packserve")
    except PackageNotFoundError:
        return "unknown"


class FunctionCounter(Collector):
    """A counter that is kept elsewhere and read when scraped. Name without ``_total``."""

    def __init__(self, name: str, documentation: str, registry: CollectorRegistry, total: Callable[[], float]) -> None:
        self._name, self._documentation, self._total = name, documentation, total
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(self._name, self._documentation, value=self._total())


@dataclass(frozen=True)
class Alias:
    """Another name for ``source``'s samples. Name without the ``_total`` of a counter."""

    name: str
    source: Collector
    # A label's name here to its name there; others keep theirs.
    label_names: Mapping[str, str] = field(default_factory=dict)
    # Which samples have the same meaning there, by their labels here.
    is_same: Callable[[Mapping[str, str]], bool] = lambda _: True


class AliasCollector(Collector):
    """Shows series a second time under names that known dashboards read, so that nothing is counted twice."""

    def __init__(self, aliases: tuple[Alias, ...], labels: Mapping[str, str]) -> None:
        self._aliases = aliases
        self._labels = dict(labels)

    def collect(self) -> Iterator[Metric]:
        for alias in self._aliases:
            for family in alias.source.collect():
                yield self._renamed(alias, family)

    def _renamed(self, alias: Alias, family: Metric) -> Metric:
        renamed = Metric(alias.name, f"{family.documentation} (alias of {family.name})", family.type, family.unit)
        for sample in family.samples:
            if alias.is_same(sample.labels):
                labels = {alias.label_names.get(name, name): value for name, value in sample.labels.items()}
                suffix = sample.name.removeprefix(family.name)
                renamed.add_sample(alias.name + suffix, labels | self._labels, sample.value)
        return renamed


def vllm_labels(model_name: str) -> dict[str, str]:
    """The constant labels of vLLM's dashboards; a process here has one engine."""
    return {"model_name": model_name, "engine": "0"}
