# SPDX-License-Identifier: Apache-2.0
"""Rules about names that one resource uses and another has to bear: labels, ports, claims, targets."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from tests.k8s.manifests import (
    CLUSTER_SCOPED,
    Manifests,
    Resource,
    Rule,
    container,
    containers,
    environment,
    pod,
    pod_labels,
    ports,
    title,
)

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9-]{1,15}")


def names_are_single_and_valid(manifests: Manifests) -> Iterator[str]:
    for name, count in Counter(title(each) for each in manifests.resources).items():
        if count > 1:
            yield f"{name}: there are {count}"
        if not NAME.fullmatch(name.split()[1]):
            yield f"{name}: is no name of a DNS label"
    for workload in manifests.workloads:
        for name, port in ports(workload).items():
            if not PORT_NAME.fullmatch(name) or not 0 < port < 65536:
                yield f"{title(workload)}: port {name}={port} is not valid"


def everything_is_in_the_one_namespace(manifests: Manifests) -> Iterator[str]:
    namespaces = manifests.names("Namespace")
    for each in manifests.resources:
        if each["kind"] not in CLUSTER_SCOPED and {each["metadata"].get("namespace")} != namespaces:
            yield f"{title(each)}: not in {namespaces}"


def selectors(resource: Resource) -> Iterator[dict[str, str]]:
    """Labels by which a resource chooses pods of its own namespace; all of them where it says none."""
    spec = resource["spec"]
    match resource["kind"]:
        case "Service":
            yield spec["selector"]
        case "PodDisruptionBudget" | "PodMonitor":
            yield spec["selector"]["matchLabels"]
        case "NetworkPolicy":
            yield spec["podSelector"].get("matchLabels", {})
            for rule in (*spec.get("ingress", ()), *spec.get("egress", ())):
                for peer in (*rule.get("from", ()), *rule.get("to", ())):
                    if "podSelector" in peer and "namespaceSelector" not in peer:
                        yield peer["podSelector"].get("matchLabels", {})


def selectors_find_pods(manifests: Manifests) -> Iterator[str]:
    for each in manifests.of_kind("Service", "PodDisruptionBudget", "PodMonitor", "NetworkPolicy"):
        for labels in selectors(each):
            if not manifests.selected(labels):
                yield f"{title(each)}: no pod has {labels}"
    for workload in manifests.workloads:
        spreads = pod(workload).get("topologySpreadConstraints", ())
        for selector in (workload["spec"]["selector"], *(spread["labelSelector"] for spread in spreads)):
            if not selector["matchLabels"].items() <= pod_labels(workload).items():
                yield f"{title(workload)}: its own pods have not {selector['matchLabels']}"


def ports_that_services_name_are_there(manifests: Manifests) -> Iterator[str]:
    """Numbers are the same on both sides: behind a headless name a caller reaches the container's."""
    for service in manifests.of_kind("Service"):
        for workload in manifests.selected(service["spec"]["selector"]):
            for port in service["spec"]["ports"]:
                if ports(workload).get(port["targetPort"]) != port["port"]:
                    yield f"{title(service)}: {title(workload)} has no {port['targetPort']} at {port['port']}"


def ports_that_policies_name_are_there(manifests: Manifests) -> Iterator[str]:
    for policy in manifests.of_kind("NetworkPolicy"):
        own = manifests.selected(policy["spec"]["podSelector"].get("matchLabels", {}))
        for rule in policy["spec"]["ingress"]:
            yield from _missing_ports(policy, rule, own)
        for rule in policy["spec"]["egress"]:
            for peer in rule["to"]:
                if "podSelector" in peer:
                    yield from _missing_ports(policy, rule, manifests.selected(peer["podSelector"]["matchLabels"]))


def _missing_ports(policy: Resource, rule: Resource, workloads: list[Resource]) -> Iterator[str]:
    for port in rule["ports"]:
        for workload in workloads:
            if port["port"] not in (ports(workload).keys() | set(ports(workload).values())):
                yield f"{title(policy)}: {title(workload)} has no port {port['port']}"


def each_metrics_port_is_scraped_once(manifests: Manifests) -> Iterator[str]:
    """Where anything is scraped at all."""
    monitors = manifests.of_kind("PodMonitor", "ServiceMonitor")
    scraped = [target for monitor in monitors for target in _scraped(manifests, monitor)]
    for monitor in monitors:
        if not list(_scraped(manifests, monitor)):
            yield f"{title(monitor)}: nothing has the port that it scrapes"
    for workload in manifests.workloads if monitors else ():
        if "metrics" in ports(workload) and scraped.count(title(workload)) != 1:
            yield f"{title(workload)}: scraped {scraped.count(title(workload))} times"


def _scraped(manifests: Manifests, monitor: Resource) -> Iterator[str]:
    labels = monitor["spec"]["selector"]["matchLabels"]
    if monitor["kind"] == "PodMonitor":
        for endpoint in monitor["spec"]["podMetricsEndpoints"]:
            yield from (title(each) for each in manifests.selected(labels) if endpoint["port"] in ports(each))
        return
    for endpoint in monitor["spec"]["endpoints"]:
        for service in manifests.of_kind("Service"):
            is_chosen = labels.items() <= service["metadata"]["labels"].items()
            if is_chosen and endpoint["port"] in (port["name"] for port in service["spec"]["ports"]):
                yield from (title(each) for each in manifests.selected(service["spec"]["selector"]))


def what_pods_name_is_there(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        volumes = {volume["name"]: volume for volume in pod(workload).get("volumes", ())}
        mounts = [mount for each in containers(workload) for mount in each.get("volumeMounts", ())]
        if unlike := volumes.keys() ^ {mount["name"] for mount in mounts}:
            yield f"{title(workload)}: mounted and not there, or the reverse: {sorted(unlike)}"
        for volume in volumes.values():
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            if claim and claim not in manifests.names("PersistentVolumeClaim"):
                yield f"{title(workload)}: no claim {claim}"
        runtime_class = pod(workload).get("runtimeClassName")
        if runtime_class and runtime_class not in manifests.names("RuntimeClass"):
            yield f"{title(workload)}: no RuntimeClass {runtime_class}"


def models_are_where_both_services_look(manifests: Manifests) -> Iterator[str]:
    models = {
        environment(each)[f"{each['metadata']['name'].split('-')[1].upper()}_MODEL"] for each in manifests.workloads
    }
    if len(models) != 1:
        yield f"services read different models: {models}"
    for workload in manifests.workloads:
        paths = {mount["mountPath"] for mount in container(workload)["volumeMounts"]}
        if not any(str(model).startswith(f"{path}/") for model in models for path in paths):
            yield f"{title(workload)}: nothing is mounted at {models}"


def tokenizers_look_for_executors_behind_a_headless_name(manifests: Manifests) -> Iterator[str]:
    target = environment(manifests.workload("tokenizer")).get("TOKENIZER_EXECUTORS") or ""
    name, _, port = target.removeprefix("dns:///").partition(":")
    if not target.startswith("dns:///") or name not in manifests.names("Service"):
        yield f"TOKENIZER_EXECUTORS={target}: is no name of a Service"
        return
    service = manifests.get("Service", name)["spec"]
    if service.get("clusterIP") != "None":
        yield f"Service {name}: one address stands for all executors"
    if port not in (str(each["port"]) for each in service["ports"] if each["name"] == "grpc"):
        yield f"TOKENIZER_EXECUTORS={target}: Service {name} has no gRPC at {port}"
    if manifests.workload("executor") not in manifests.selected(service["selector"]):
        yield f"Service {name}: executors are not behind it"
    if service.get("publishNotReadyAddresses"):
        yield f"Service {name}: answers with executors that load"


RULES: tuple[Rule, ...] = (
    names_are_single_and_valid,
    everything_is_in_the_one_namespace,
    selectors_find_pods,
    ports_that_services_name_are_there,
    ports_that_policies_name_are_there,
    each_metrics_port_is_scraped_once,
    what_pods_name_is_there,
    models_are_where_both_services_look,
    tokenizers_look_for_executors_behind_a_headless_name,
)
