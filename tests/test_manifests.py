# SPDX-License-Identifier: Apache-2.0
"""k8s/base renders, is valid for the oldest and the newest Kubernetes that we name, and agrees with the services."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from executor_service.__main__ import main as executor_command
from tests.fixtures.repository import ROOT
from tokenizer_service.__main__ import main as tokenizer_command

Resource = dict[str, Any]

KUBERNETES_VERSIONS = ("1.31", "1.37")
COMMANDS = {"executor": executor_command, "tokenizer": tokenizer_command}
WORKLOADS = {"executor": "StatefulSet", "tokenizer": "Deployment"}


@cache
def rendered() -> tuple[Resource, ...]:
    command = [str(Path(sys.executable).parent / "kubectl"), "kustomize", str(ROOT / "k8s" / "base")]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return tuple(yaml.safe_load_all(text))


def resource(kind: str, name: str) -> Resource:
    (found,) = (each for each in rendered() if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def pod(service: str) -> Resource:
    spec: Resource = resource(WORKLOADS[service], f"packserve-{service}")["spec"]["template"]["spec"]
    return spec


def environment(service: str) -> dict[str, str]:
    return {each["name"]: each["value"] for each in pod(service)["containers"][0]["env"]}


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_every_resource_is_valid(version: str) -> None:
    for each in rendered():
        kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("service", WORKLOADS)
def test_services_select_their_pods_and_name_their_ports(service: str) -> None:
    workload = resource(WORKLOADS[service], f"packserve-{service}")["spec"]
    front = resource("Service", f"packserve-{service}")["spec"]
    labels = workload["template"]["metadata"]["labels"]
    assert workload["selector"]["matchLabels"].items() <= labels.items()
    assert front["selector"].items() <= labels.items()
    container_ports = {port["name"]: port["containerPort"] for port in pod(service)["containers"][0]["ports"]}
    assert {port["targetPort"]: port["port"] for port in front["ports"]}.items() <= container_ports.items()


@pytest.mark.parametrize("service", WORKLOADS)
def test_ports_and_variables_are_the_services_own(service: str) -> None:
    options = {option.name: option for option in COMMANDS[service].params}
    container = pod(service)["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    defaults = {name: options[name].default for name in ("port", "health_port", "metrics_port")}
    assert [ports["grpc"], ports["health"], ports["metrics"]] == list(defaults.values())
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["grpc"]["port"] == ports["health"]
    prefix = f"{service.upper()}_"
    assert {name.removeprefix(prefix).lower() for name in environment(service)} <= options.keys()


@pytest.mark.parametrize("service", WORKLOADS)
def test_pod_outlives_its_drain(service: str) -> None:
    pre_stop_s = pod(service)["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    drain_s = float(environment(service)[f"{service.upper()}_DRAIN_TIMEOUT_S"])
    assert pod(service)["terminationGracePeriodSeconds"] > pre_stop_s + drain_s


@pytest.mark.parametrize("service", WORKLOADS)
def test_pod_meets_the_restricted_security_standard(service: str) -> None:
    container = pod(service)["containers"][0]["securityContext"]
    assert pod(service)["securityContext"]["runAsNonRoot"]
    assert pod(service)["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
    assert container["capabilities"]["drop"] == ["ALL"]
    assert not container["allowPrivilegeEscalation"]


def test_tokenizer_finds_the_executors() -> None:
    port = next(
        port["port"] for port in resource("Service", "packserve-executor")["spec"]["ports"] if port["name"] == "grpc"
    )
    assert environment("tokenizer")["TOKENIZER_EXECUTORS"].endswith(f"packserve-executor:{port}")
    assert resource("Service", "packserve-executor")["spec"]["clusterIP"] == "None"
