# SPDX-License-Identifier: Apache-2.0
"""Writes docs/metrics.md from what the services declare: `python -m k8s.monitoring.document`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric

from executor_service.metrics import Metrics as ExecutorMetrics
from protos.metrics import new_registry, watch_server
from tokenizer_service.metrics import Metrics as TokenizerMetrics

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"

SECTIONS = {
    "tokenizer": "Tokenizer service, port 9101: what a caller waits for",
    "executor": "Executor service, port 9102: queue, steps and KV cache",
    "both": "Both services: what a process tells of itself",
}
INTRODUCTION = """\
# Metrics

HTTP, `/metrics`, one process for each replica: sums over replicas are sums over the service, and a counter that falls
is a restart, which `rate` and `increase` take into account. Each series comes from one service, is there from the
start (0 when idle), and has no label that a caller can fill.

"Also as" is an alias of our own: the name that dashboards of vLLM read, where the meaning is the same, with the labels
`model_name` and `engine="0"`. Of `packserve_requests_total` it has what ended by stop or length, as `finished_reason`.

This page is written by `python -m k8s.monitoring.document`. What is made of the series: [alerts](runbook.md),
[rules and dashboards](deploy.md#monitoring).
"""
HEAD = "| series | type | labels | unit | meaning | also as |\n|---|---|---|---|---|---|\n"

# Those of packserve_model_info, which it has once the model is loaded.
MODEL_LABELS = ("model", "architecture", "dtype", "quantization", "device")
# The last of these in a name says what is counted.
UNITS = {
    "seconds": "seconds",
    "bytes": "bytes",
    "tokens": "tokens",
    "characters": "characters",
    "ratio": "0 to 1",
    "blocks": "blocks",
    "executors": "executors",
    "sequences": "sequences",
    "requests": "calls",
    "calls": "calls",
    "rows": "rows",
    "steps": "steps",
    "ready": "0 or 1",
    "info": "always 1",
    "fds": "file descriptors",
}


@dataclass(frozen=True)
class Series:
    family: Metric
    alias: str

    @property
    def name(self) -> str:
        """As it is scraped; a histogram's is without _bucket, _sum and _count."""
        suffix = {"counter": "_total", "info": "_info"}.get(self.family.type, "")
        return self.family.name + suffix

    @property
    def labels(self) -> dict[str, list[str]]:
        """Values of each; none where they depend on what is served or installed."""
        if self.name == "packserve_model_info":
            return {label: [] for label in MODEL_LABELS}
        values: dict[str, list[str]] = {}
        for sample in self.family.samples:
            for label, value in sample.labels.items():
                known = values.setdefault(label, [])
                if not self.name.endswith("_info") and value not in known:
                    known.append(value)
        return {label: known for label, known in values.items() if label != "le"}

    @property
    def unit(self) -> str:
        words = [word for word in self.name.split("_") if word in UNITS]
        return UNITS[words[-1]] if words else "count"

    @property
    def edges(self) -> str:
        edges = [sample.labels["le"] for sample in self.family.samples if "le" in sample.labels]
        return ", ".join(dict.fromkeys(f"{float(edge):g}" for edge in edges if edge != "+Inf"))

    def row(self) -> str:
        labels = "; ".join(
            f"`{label}`{': ' if values else ''}{', '.join(values)}" for label, values in self.labels.items()
        )
        kind = "gauge" if self.family.type == "info" else self.family.type
        alias = f"`{self.alias}`" if self.alias else ""
        cells = (f"`{self.name}`", kind, labels, self.unit, self.family.documentation, alias)
        return "| " + " | ".join(cells) + " |\n"


def registries() -> dict[str, CollectorRegistry]:
    """Of each service, by its name: idle, before a model is loaded."""
    tokenizer, executor = new_registry(), new_registry()
    TokenizerMetrics(tokenizer, "model")
    ExecutorMetrics(executor, "model")
    found = {"tokenizer": tokenizer, "executor": executor}
    for service, registry in found.items():
        watch_server(registry, service, lambda: False)
    return found


def declared() -> dict[str, list[Series]]:
    """By section. An alias is a property of what it stands for."""
    families = {service: {each.name: each for each in registry.collect()} for service, registry in registries().items()}
    shared = families["tokenizer"].keys() & families["executor"].keys()
    sections: Mapping[str, Iterable[Metric]] = {
        **{service: [each for name, each in own.items() if name not in shared] for service, own in families.items()},
        "both": [families["tokenizer"][name] for name in sorted(shared)],
    }
    return {section: with_aliases(each) for section, each in sections.items()}


def with_aliases(families: Iterable[Metric]) -> list[Series]:
    aliases, own = {}, []
    for family in families:
        if family.name.startswith("vllm:"):
            source = family.documentation.rsplit("(alias of ", 1)[1].rstrip(")")
            aliases[source] = Series(family, "").name
        else:
            own.append(family)
    return [Series(family, aliases.get(family.name, "")) for family in sorted(own, key=lambda family: family.name)]


def page() -> str:
    sections = declared()
    tables = [
        f"\n## {SECTIONS[section]}\n\n{HEAD}{''.join(each.row() for each in series)}"
        for section, series in sections.items()
    ]
    edges: dict[str, list[str]] = {}
    for series in (each for section in sections.values() for each in section if each.edges):
        edges.setdefault(series.edges, []).append(series.name)
    buckets = [f"- {', '.join(f'`{name}`' for name in names)}: {each}\n" for each, names in edges.items()]
    return INTRODUCTION + "".join(tables) + "\n## Buckets of the histograms\n\n" + "".join(buckets)


if __name__ == "__main__":
    PAGE.write_text(page())
