# SPDX-License-Identifier: Apache-2.0
"""The monitoring component finds the pods of k8s/base, and Grafana's sidecar finds the dashboards."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fixtures.repository import ROOT
from tests.monitoring.rendered import DASHBOARDS, KNOBS, dashboard

Resource = dict[str, Any]
KUBECTL = str(Path(sys.executable).parent / "kubectl")


@cache
def built(folder: str) -> tuple[Resource, ...]:
    command = [KUBECTL, "kustomize", str(ROOT / folder)]
    return tuple(yaml.safe_load_all(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def named(kind: str, folder: str) -> dict[str, Resource]:
    return {each["metadata"]["name"]: each for each in built(folder) if each["kind"] == kind}


@pytest.mark.parametrize("job", [KNOBS.jobs.tokenizer, KNOBS.jobs.executor])
def test_monitor_selects_one_workloads_pods_and_their_port(job: str) -> None:
    spec = named("PodMonitor", "k8s/components/monitoring")[job]["spec"]
    templates = [each["spec"]["template"] for each in built("k8s/base") if "template" in each.get("spec", {})]
    selected = [
        each for each in templates if spec["selector"]["matchLabels"].items() <= each["metadata"]["labels"].items()
    ]
    (template,) = selected
    assert template["metadata"]["labels"][spec["jobLabel"]] == job
    ports = [port["name"] for each in template["spec"]["containers"] for port in each["ports"]]
    assert [endpoint["port"] in ports for endpoint in spec["podMetricsEndpoints"]] == [True]


def test_rules_are_those_that_promtool_checks() -> None:
    rule = named("PrometheusRule", "k8s/components/monitoring")["packserve"]
    assert rule["spec"] == yaml.safe_load((ROOT / "k8s/monitoring/rendered/rules.yaml").read_text())


def test_dashboards_are_config_maps_that_grafana_loads() -> None:
    maps = named("ConfigMap", "k8s/components/monitoring")
    assert maps.keys() == {f"packserve-dashboard-{name}" for name in DASHBOARDS}
    for name in DASHBOARDS:
        found = maps[f"packserve-dashboard-{name}"]
        assert KNOBS.dashboards.label.items() <= found["metadata"]["labels"].items()
        assert json.loads(found["data"][f"{name}.json"]) == dashboard(name)
        assert len(found["data"][f"{name}.json"]) < 2**20
