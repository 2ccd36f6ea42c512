# SPDX-License-Identifier: Apache-2.0
"""Rules about a pod: settings that its service knows, probes, time to start and to end, security, cards."""

from __future__ import annotations

from collections.abc import Iterator

from executor_service.__main__ import main as executor_command
from tests.k8s.manifests import (
    SERVICES,
    Manifests,
    Resource,
    Rule,
    container,
    containers,
    environment,
    pod,
    ports,
    service_of,
    title,
)
from tokenizer_service.__main__ import main as tokenizer_command

COMMANDS = {"executor": executor_command, "tokenizer": tokenizer_command}
# Read by libraries and by torch_npu, not by us.
LIBRARIES_VARIABLES = {"OMP_NUM_THREADS", "TORCH_NPU_FALLBACK_CPU_DISABLE"}
# The slowest load that a restart must not cut short.
LOAD_S = 300
# What each probe asks. A tokenizer's service "startup" waits for an executor, and its restart must not.
PROBES = {
    "executor": {"startupProbe": "startup", "readinessProbe": "readiness", "livenessProbe": "liveness"},
    "tokenizer": {"startupProbe": "liveness", "readinessProbe": "readiness", "livenessProbe": "liveness"},
}
DEVICE_OF_RESOURCE = {"huawei.com/Ascend910": "npu:0", "huawei.com/Ascend310P": "npu:0", "nvidia.com/gpu": "cuda:0"}
HOST = ("hostNetwork", "hostPID", "hostIPC")
SECURITY_CONTEXT = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def both_services_are_there(manifests: Manifests) -> Iterator[str]:
    if (found := {service_of(each) for each in manifests.workloads}) != set(SERVICES):
        yield f"workloads are {found}"


def settings_are_the_services_own(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        service = service_of(workload)
        options = {f"{service}_{option.name}".upper(): option for option in COMMANDS[service].params}
        for name in environment(workload).keys() - LIBRARIES_VARIABLES - options.keys():
            yield f"{title(workload)}: nothing reads {name}"
        for port in ("port", "health_port", "metrics_port"):
            name = port.removesuffix("_port").replace("port", "grpc")
            if ports(workload).get(name) != options[f"{service}_{port}".upper()].default:
                yield f"{title(workload)}: listens elsewhere than at its port {name}"


def budget_s(probe: Resource) -> int:
    """How long a probe may fail before the pod is restarted."""
    return int(probe["periodSeconds"]) * int(probe["failureThreshold"])


def probes_ask_the_health_port(manifests: Manifests) -> Iterator[str]:
    """By number: a probe of type grpc takes no name."""
    for workload in manifests.workloads:
        for probe, asked in PROBES[service_of(workload)].items():
            found = container(workload).get(probe, {}).get("grpc")
            if found != {"port": ports(workload).get("health"), "service": asked}:
                yield f"{title(workload)}: {probe} asks {found}"


def a_slow_load_is_waited_for(manifests: Manifests) -> Iterator[str]:
    workload = manifests.workload("executor")
    budget = budget_s(container(workload)["startupProbe"])
    if budget < 2 * LOAD_S:
        yield f"{title(workload)}: restarted after {budget} s of loading"
    for each in manifests.workloads:
        deadline = each["spec"].get("progressDeadlineSeconds", 600)
        if deadline <= budget_s(container(each)["startupProbe"]):
            yield f"{title(each)}: roll-out fails after {deadline} s, while it may still start"


def a_pod_outlives_its_drain(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        drain_s = float(environment(workload)[f"{service_of(workload).upper()}_DRAIN_TIMEOUT_S"] or 0)
        pre_stop_s = container(workload).get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        # Callers that look names up every few seconds have to hear of it first.
        if pre_stop_s < 5:
            yield f"{title(workload)}: refuses calls while it is still chosen"
        if (grace_s := pod(workload).get("terminationGracePeriodSeconds", 30)) <= pre_stop_s + drain_s:
            yield f"{title(workload)}: killed after {grace_s} s, before {pre_stop_s} + {drain_s} s are over"


def pods_are_restricted(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        yield from (f"{title(workload)}: {fault}" for fault in (*pod_faults(pod(workload)), *_bounds(workload)))


def pod_faults(spec: Resource) -> Iterator[str]:
    """What the pod security standard of level restricted forbids, and more: a root file system that can be written."""
    own = spec.get("securityContext", {})
    is_user = own.get("runAsNonRoot") is True and own.get("runAsUser", 0) > 0 and own.get("runAsGroup", 0) > 0
    if not is_user or own.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield "its pod runs as root, or without the default seccomp profile"
    if any(spec.get(name) for name in HOST) or spec.get("automountServiceAccountToken") is not False:
        yield "sees the host, or holds a token"
    if spec.get("enableServiceLinks") is not False:
        yield "links to Services set variables"
    for each in (*spec.get("initContainers", ()), *spec["containers"]):
        if (found := each.get("securityContext")) != SECURITY_CONTEXT:
            yield f"container {each['name']} has {found}"


def _bounds(workload: Resource) -> Iterator[str]:
    for each in containers(workload):
        resources = each["resources"]
        if "cpu" in resources["limits"] or "memory" not in resources["limits"]:
            yield f"container {each['name']} is throttled, or unbounded in memory"
        if not {"cpu", "memory"} <= resources["requests"].keys():
            yield f"container {each['name']} asks for nothing"


def paths_of_the_host_are_let_in_by_the_namespace(manifests: Manifests) -> Iterator[str]:
    """And no level is wider than it needs to be. Such paths are read only."""
    host_paths = [v["name"] for each in manifests.workloads for v in pod(each)["volumes"] if "hostPath" in v]
    for namespace in manifests.of_kind("Namespace"):
        level = namespace["metadata"].get("labels", {}).get("pod-security.kubernetes.io/enforce")
        if level != ("privileged" if host_paths else "restricted"):
            yield f"{title(namespace)}: level {level}, with paths of the host {host_paths}"
    for workload in manifests.workloads:
        for mount in container(workload)["volumeMounts"]:
            if mount["name"] in host_paths and not mount.get("readOnly"):
                yield f"{title(workload)}: writes to the host by {mount['name']}"


def replicas_are_spread(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.workloads:
        keys = {spread["topologyKey"] for spread in pod(workload).get("topologySpreadConstraints", ())}
        if "kubernetes.io/hostname" not in keys:
            yield f"{title(workload)}: its pods may all stand on one node"


def cards(workload: Resource) -> dict[str, str]:
    return {name: count for name, count in container(workload)["resources"]["limits"].items() if "/" in name}


def devices_fit_cards(manifests: Manifests) -> Iterator[str]:
    workload = manifests.workload("executor")
    where, found, variables = title(workload), cards(workload), environment(workload)
    devices = {DEVICE_OF_RESOURCE.get(name) for name in found} or {"cpu"}
    if {variables.get("EXECUTOR_DEVICE")} != devices or set(found.values()) - {"1"}:
        yield f"{where}: EXECUTOR_DEVICE={variables.get('EXECUTOR_DEVICE')} with {found}"
    if "huawei.com/Ascend310P" in found and variables.get("EXECUTOR_DTYPE") != "float16":
        yield f"{where}: 310P computes in float16 only"
    if found and {each["key"] for each in pod(workload).get("tolerations", ())} != found.keys():
        yield f"{where}: does not tolerate the taint of {set(found)}"
    if found and "/dev/shm" not in {mount["mountPath"] for mount in container(workload)["volumeMounts"]}:
        yield f"{where}: 64 MiB of shared memory"
    if cards(manifests.workload("tokenizer")):
        yield "tokenizers have a card"


def no_pod_waits_for_the_card_of_the_one_that_it_replaces(manifests: Manifests) -> Iterator[str]:
    for workload in manifests.of_kind("Deployment"):
        rolling = workload["spec"].get("strategy", {}).get("rollingUpdate", {})
        if cards(workload) and (rolling.get("maxSurge"), rolling.get("maxUnavailable")) != (0, 1):
            yield f"{title(workload)}: has cards and rolls by {rolling}"


RULES: tuple[Rule, ...] = (
    both_services_are_there,
    settings_are_the_services_own,
    probes_ask_the_health_port,
    a_slow_load_is_waited_for,
    a_pod_outlives_its_drain,
    pods_are_restricted,
    paths_of_the_host_are_let_in_by_the_namespace,
    replicas_are_spread,
    devices_fit_cards,
    no_pod_waits_for_the_card_of_the_one_that_it_replaces,
)
