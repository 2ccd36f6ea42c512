# SPDX-License-Identifier: Apache-2.0
"""Rules about what is added to the two services: scaling, disruption budgets, network policies, series."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.fixtures.series import exported_series
from tests.k8s.manifests import Manifests, Resource, Rule, container, title, walk

SCALERS = ("HorizontalPodAutoscaler", "ScaledObject")


def scalers_have_targets_without_a_number_of_their_own(manifests: Manifests) -> Iterator[str]:
    """Else each `apply` would set the number back."""
    for scaler in manifests.of_kind(*SCALERS):
        target = scaler["spec"]["scaleTargetRef"]
        kind, name = target.get("kind", "Deployment"), target["name"]
        if name not in manifests.names(kind):
            yield f"{title(scaler)}: no {kind} {name}"
        elif "replicas" in manifests.get(kind, name)["spec"]:
            yield f"{title(scaler)}: {kind} {name} has replicas too"


def scalers_have_bounds(manifests: Manifests) -> Iterator[str]:
    for scaler in manifests.of_kind(*SCALERS):
        spec = scaler["spec"]
        low = spec.get("minReplicas", spec.get("minReplicaCount", 0))
        high = spec.get("maxReplicas", spec.get("maxReplicaCount", 0))
        if not 1 <= low < high:
            yield f"{title(scaler)}: from {low} to {high} replicas"


def shares_are_of_what_pods_ask_for(manifests: Manifests) -> Iterator[str]:
    for scaler in manifests.of_kind("HorizontalPodAutoscaler"):
        target = manifests.get("Deployment", scaler["spec"]["scaleTargetRef"]["name"])
        for metric in scaler["spec"]["metrics"]:
            if metric["resource"]["name"] not in container(target)["resources"]["requests"]:
                yield f"{title(scaler)}: {title(target)} asks for no {metric['resource']['name']}"


def triggers_read_series_of_this_namespace(manifests: Manifests) -> Iterator[str]:
    """KEDA makes a metric of each; a missing series is an error there and not 0."""
    for scaler in manifests.of_kind("ScaledObject"):
        for trigger in scaler["spec"]["triggers"]:
            query, where = trigger["metadata"]["query"], f"{title(scaler)}, {trigger.get('name')}"
            if f'namespace="{scaler["metadata"]["namespace"]}"' not in query:
                yield f"{where}: {query} reads other namespaces"
            if trigger["metadata"].get("ignoreNullValues") != "false" or float(trigger["metadata"]["threshold"]) <= 0:
                yield f"{where}: takes a missing series for 0, or has no threshold"


def series_are_exported(manifests: Manifests) -> Iterator[str]:
    """Those in triggers and in rules; an alias counts, the name of a recording rule has a colon."""
    series = exported_series()
    for each in manifests.of_kind("ScaledObject", "PrometheusRule"):
        expressions = [node.get("query") or node.get("expr") for node in walk(each["spec"]) if isinstance(node, dict)]
        for expression in filter(None, expressions):
            names = set(re.findall(r"(?<![\w:])packserve_\w+(?!\w*:)", re.sub(r'"[^"]*"', "", expression)))
            for name in sorted(names - series):
                yield f"{title(each)}: nothing exports {name}"


def budgets_leave_one_to_go(manifests: Manifests) -> Iterator[str]:
    for budget in manifests.of_kind("PodDisruptionBudget"):
        if "minAvailable" in budget["spec"] or budget["spec"].get("maxUnavailable") != 1:
            yield f"{title(budget)}: may keep a node from being emptied"
    for workload in manifests.workloads:
        budgets = manifests.of_kind("PodDisruptionBudget")
        chosen = [each for each in budgets if workload in manifests.selected(each["spec"]["selector"]["matchLabels"])]
        if budgets and len(chosen) != 1:
            yield f"{title(workload)}: {len(chosen)} budgets, an eviction wants one"


def policies_let_names_be_looked_up(manifests: Manifests) -> Iterator[str]:
    for policy in manifests.of_kind("NetworkPolicy"):
        spec = policy["spec"]
        if set(spec["policyTypes"]) != {"Ingress", "Egress"}:
            yield f"{title(policy)}: rules {spec['policyTypes']} alone"
        allowed = {(port.get("protocol", "TCP"), port["port"]) for rule in spec["egress"] for port in rule["ports"]}
        if not {("UDP", 53), ("TCP", 53)} <= allowed:
            yield f"{title(policy)}: pods cannot look up names"


def policies_let_through_what_is_needed_and_no_more(manifests: Manifests) -> Iterator[str]:
    policies = manifests.of_kind("NetworkPolicy")
    if not policies:
        return
    if not any(not policy["spec"]["podSelector"] and not policy["spec"]["ingress"] for policy in policies):
        yield "no policy closes what the others do not open"
    ways = {way for policy in policies for way in _ways(manifests, policy)}
    name = "packserve-{}".format
    needed = {("in", name("tokenizer"), "grpc"), ("out", name("tokenizer"), name("executor"), "grpc")}
    needed |= {("in", name("executor"), name("tokenizer"), "grpc")}
    needed |= {("in", name(service), "metrics") for service in ("tokenizer", "executor")}
    for way in sorted(map(str, needed ^ ways)):
        yield f"network policies: {way} is closed and needed, or the reverse"


def _ways(manifests: Manifests, policy: Resource) -> Iterator[tuple[str, ...]]:
    """(direction, pods, peer pods if they are named, port), without the look-up of names."""
    for workload in manifests.selected(policy["spec"]["podSelector"].get("matchLabels", {})):
        own = workload["metadata"]["name"]
        for direction, key in (("in", "ingress"), ("out", "egress")):
            for rule in policy["spec"][key]:
                for peer in (*rule.get("from", ()), *rule.get("to", ())):
                    chosen = manifests.selected(peer["podSelector"]["matchLabels"]) if "podSelector" in peer else []
                    for port in (port["port"] for port in rule["ports"] if port["port"] != 53):
                        yield direction, own, *(each["metadata"]["name"] for each in chosen), str(port)


RULES: tuple[Rule, ...] = (
    scalers_have_targets_without_a_number_of_their_own,
    scalers_have_bounds,
    shares_are_of_what_pods_ask_for,
    triggers_read_series_of_this_namespace,
    series_are_exported,
    budgets_leave_one_to_go,
    policies_let_names_be_looked_up,
    policies_let_through_what_is_needed_and_no_more,
)
