# SPDX-License-Identifier: Apache-2.0
"""What an overlay renders to, and questions about it that rules ask.

A rule is a function from manifests to sentences, one for each fault that it finds. Does not know the rules.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.fixtures.repository import ROOT

Resource = dict[str, Any]

KUBECTL = Path(sys.executable).parent / "kubectl"
OVERLAYS = tuple(sorted(path.parent for path in (ROOT / "k8s" / "overlays").glob("*/kustomization.yaml")))
WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet", "Job")
CLUSTER_SCOPED = ("Namespace", "RuntimeClass")
SERVICES = ("executor", "tokenizer")


@cache
def rendered(overlay: Path) -> str:
    command = [str(KUBECTL), "kustomize", str(overlay)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@cache
def _parsed(overlay: Path) -> tuple[Resource, ...]:
    return tuple(yaml.load_all(rendered(overlay), yaml.CSafeLoader))


@dataclass(frozen=True)
class Manifests:
    resources: tuple[Resource, ...]

    @staticmethod
    def of_overlay(overlay: Path) -> Manifests:
        """A copy of one's own, to be changed."""
        return Manifests(deepcopy(_parsed(overlay)))

    def of_kind(self, *kinds: str) -> list[Resource]:
        return [each for each in self.resources if each["kind"] in kinds]

    def names(self, kind: str) -> set[str]:
        return {each["metadata"]["name"] for each in self.of_kind(kind)}

    def get(self, kind: str, name: str) -> Resource:
        """Raises ValueError where there is not exactly one."""
        (found,) = (each for each in self.of_kind(kind) if each["metadata"]["name"] == name)
        return found

    @property
    def workloads(self) -> list[Resource]:
        return self.of_kind(*WORKLOADS)

    def workload(self, service: str) -> Resource:
        return self.get("Deployment", f"packserve-{service}")

    def selected(self, labels: dict[str, str]) -> list[Resource]:
        """Workloads whose pods have these labels."""
        return [each for each in self.workloads if labels.items() <= pod_labels(each).items()]


Rule = Callable[[Manifests], Iterator[str]]


def title(resource: Resource) -> str:
    return f"{resource['kind']} {resource['metadata']['name']}"


def pod(workload: Resource) -> Resource:
    spec: Resource = workload["spec"]["template"]["spec"]
    return spec


def pod_labels(workload: Resource) -> dict[str, str]:
    labels: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return labels


def containers(workload: Resource) -> list[Resource]:
    return [*pod(workload).get("initContainers", ()), *pod(workload)["containers"]]


def container(workload: Resource) -> Resource:
    """The one that serves."""
    first: Resource = pod(workload)["containers"][0]
    return first


def ports(workload: Resource) -> dict[str, int]:
    """By name, of all its containers."""
    return {port["name"]: port["containerPort"] for each in containers(workload) for port in each.get("ports", ())}


def environment(workload: Resource) -> dict[str, str | None]:
    """None where the value comes from elsewhere."""
    return {each["name"]: each.get("value") for each in container(workload).get("env", ())}


def service_of(workload: Resource) -> str:
    name: str = workload["metadata"]["name"]
    return name.removeprefix("packserve-")


def walk(node: Any) -> Iterator[Any]:
    """A tree's nodes, itself first."""
    yield node
    for each in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from walk(each)
