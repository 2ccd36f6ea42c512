# SPDX-License-Identifier: Apache-2.0
"""What a cluster is given: PodMonitors, the PrometheusRule, and dashboards as ConfigMaps for Grafana's sidecar."""

from __future__ import annotations

from typing import Any

from k8s.monitoring.knobs import Knobs

API = "monitoring.coreos.com/v1"
KUSTOMIZE_API = "kustomize.config.k8s.io/v1alpha1"
NAME_LABEL = "app.kubernetes.io/name"


def _metadata(name: str, knobs: Knobs) -> dict[str, Any]:
    return {"name": name} | ({"labels": knobs.scrape.labels} if knobs.scrape.labels else {})


def pod_monitors(knobs: Knobs) -> list[dict[str, Any]]:
    """Of pods, not of Services: a replica is watched also while it is not ready."""
    scrape = knobs.scrape
    endpoint = {"port": scrape.port, "interval": scrape.interval, "scrapeTimeout": scrape.timeout}
    return [
        {
            "apiVersion": API,
            "kind": "PodMonitor",
            "metadata": _metadata(job, knobs),
            "spec": {
                "jobLabel": NAME_LABEL,
                "selector": {"matchLabels": {NAME_LABEL: job}},
                "podMetricsEndpoints": [endpoint],
            },
        }
        for job in (knobs.jobs.tokenizer, knobs.jobs.executor)
    ]


def prometheus_rule(groups: list[dict[str, Any]], knobs: Knobs) -> dict[str, Any]:
    metadata = _metadata("packserve", knobs)
    return {"apiVersion": API, "kind": "PrometheusRule", "metadata": metadata, "spec": {"groups": groups}}


def dashboards_component(file_names: list[str], knobs: Knobs) -> dict[str, Any]:
    """Names stay as they are, so that Grafana replaces a dashboard rather than adding one."""
    return {
        "apiVersion": KUSTOMIZE_API,
        "kind": "Component",
        "generatorOptions": {"disableNameSuffixHash": True, "labels": knobs.dashboards.label},
        "configMapGenerator": [
            {"name": f"packserve-dashboard-{name.removesuffix('.json')}", "files": [name]} for name in file_names
        ],
    }
