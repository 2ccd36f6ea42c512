# SPDX-License-Identifier: Apache-2.0
"""Mistakes that somebody may make, each made in an overlay and found by the rule that is about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from tests.fixtures.repository import ROOT
from tests.k8s import operation, pods, references
from tests.k8s.manifests import Manifests, Resource, Rule, container, pod
from tests.k8s.test_overlays import RULES

OVERLAYS = ROOT / "k8s" / "overlays"
NAME = "app.kubernetes.io/name"


class Mutation(NamedTuple):
    text: str
    rule: Rule
    make: Callable[[Manifests], object]
    overlay: str = "production"


def spec(manifests: Manifests, kind: str, name: str) -> Resource:
    found: Resource = manifests.get(kind, f"packserve-{name}")["spec"]
    return found


def executor(manifests: Manifests) -> Resource:
    return container(manifests.workload("executor"))


def tokenizer(manifests: Manifests) -> Resource:
    return container(manifests.workload("tokenizer"))


def variable(of: Resource, name: str) -> Resource:
    found: Resource = next(each for each in of["env"] if each["name"] == name)
    return found


def trigger(manifests: Manifests) -> dict[str, Any]:
    found: dict[str, Any] = spec(manifests, "ScaledObject", "executor")["triggers"][0]["metadata"]
    return found


def drop(manifests: Manifests, kind: str, name: str) -> None:
    resources = tuple(each for each in manifests.resources if each is not manifests.get(kind, name))
    object.__setattr__(manifests, "resources", resources)


MUTATIONS = (
    Mutation(
        "a typo in a Service's selector",
        references.selectors_find_pods,
        lambda m: spec(m, "Service", "executor")["selector"].update({NAME: "packserve-exceutor"}),
    ),
    Mutation(
        "a selector that is not the pods' own",
        references.selectors_find_pods,
        lambda m: spec(m, "Deployment", "tokenizer")["selector"]["matchLabels"].update({NAME: "tokenizer"}),
    ),
    Mutation(
        "a budget of a name that nothing has",
        references.selectors_find_pods,
        lambda m: spec(m, "PodDisruptionBudget", "executor")["selector"].update(matchLabels={NAME: "executor"}),
    ),
    Mutation(
        "a Service's port that the container has not",
        references.ports_that_services_name_are_there,
        lambda m: spec(m, "Service", "tokenizer")["ports"][0].update(targetPort="http"),
    ),
    Mutation(
        "another number at a headless name than in the container",
        references.ports_that_services_name_are_there,
        lambda m: spec(m, "Service", "executor")["ports"][0].update(port=80),
    ),
    Mutation(
        "a policy's port that pods have not",
        references.ports_that_policies_name_are_there,
        lambda m: spec(m, "NetworkPolicy", "executor")["ingress"][0]["ports"][0].update(port="rpc"),
    ),
    Mutation(
        "a monitor of a port of another name",
        references.each_metrics_port_is_scraped_once,
        lambda m: spec(m, "PodMonitor", "executor")["podMetricsEndpoints"][0].update(port="http-metrics"),
    ),
    Mutation(
        "a claim of another name",
        references.what_pods_name_is_there,
        lambda m: m.of_kind("PersistentVolumeClaim")[0]["metadata"].update(name="models"),
    ),
    Mutation(
        "a RuntimeClass that is left out",
        references.what_pods_name_is_there,
        lambda m: drop(m, "RuntimeClass", "ascend"),
    ),
    Mutation(
        "a model that only one service reads",
        references.models_are_where_both_services_look,
        lambda m: variable(tokenizer(m), "TOKENIZER_MODEL").update(value="/models/other"),
    ),
    Mutation(
        "executors behind one address",
        references.tokenizers_look_for_executors_behind_a_headless_name,
        lambda m: spec(m, "Service", "executor").pop("clusterIP"),
    ),
    Mutation(
        "executors at another port",
        references.tokenizers_look_for_executors_behind_a_headless_name,
        lambda m: variable(tokenizer(m), "TOKENIZER_EXECUTORS").update(value="dns:///packserve-executor:50051"),
    ),
    Mutation(
        "a resource in another namespace",
        references.everything_is_in_the_one_namespace,
        lambda m: m.get("Service", "packserve-tokenizer")["metadata"].update(namespace="default"),
    ),
    Mutation(
        "a name with an underscore",
        references.names_are_single_and_valid,
        lambda m: m.get("NetworkPolicy", "packserve-default")["metadata"].update(name="packserve_default"),
    ),
    Mutation(
        "a typo in a setting",
        pods.settings_are_the_services_own,
        lambda m: variable(executor(m), "EXECUTOR_DEVICE").update(name="EXECUTOR_DEVCE"),
    ),
    Mutation(
        "a probe that asks a port by its name",
        pods.probes_ask_the_health_port,
        lambda m: executor(m)["livenessProbe"]["grpc"].update(port="health"),
    ),
    Mutation(
        "a probe of the port that callers use",
        pods.probes_ask_the_health_port,
        lambda m: executor(m)["readinessProbe"]["grpc"].update(port=50061),
    ),
    Mutation(
        "liveness that waits for the model",
        pods.probes_ask_the_health_port,
        lambda m: executor(m)["livenessProbe"]["grpc"].update(service="readiness"),
    ),
    Mutation(
        "a tokenizer whose start waits for an executor",
        pods.probes_ask_the_health_port,
        lambda m: tokenizer(m)["startupProbe"]["grpc"].update(service="startup"),
    ),
    Mutation(
        "a start that may take two minutes",
        pods.a_slow_load_is_waited_for,
        lambda m: executor(m)["startupProbe"].update(failureThreshold=24),
    ),
    Mutation(
        "a roll-out that fails before a start does",
        pods.a_slow_load_is_waited_for,
        lambda m: spec(m, "Deployment", "executor").pop("progressDeadlineSeconds"),
    ),
    Mutation(
        "a grace that ends before the drain",
        pods.a_pod_outlives_its_drain,
        lambda m: pod(m.workload("tokenizer")).update(terminationGracePeriodSeconds=60),
    ),
    Mutation("no preStop", pods.a_pod_outlives_its_drain, lambda m: executor(m).pop("lifecycle")),
    Mutation(
        "a root file system that can be written",
        pods.pods_are_restricted,
        lambda m: tokenizer(m)["securityContext"].update(readOnlyRootFilesystem=False),
    ),
    Mutation(
        "root", pods.pods_are_restricted, lambda m: pod(m.workload("executor"))["securityContext"].update(runAsUser=0)
    ),
    Mutation(
        "a path of the host in a restricted namespace",
        pods.paths_of_the_host_are_let_in_by_the_namespace,
        lambda m: pod(m.workload("executor"))["volumes"].append({"name": "x", "hostPath": {"path": "/"}}),
    ),
    Mutation(
        "a path of the host that can be written",
        pods.paths_of_the_host_are_let_in_by_the_namespace,
        lambda m: next(mount for mount in executor(m)["volumeMounts"] if mount["name"] == "dcmi").pop("readOnly"),
        "ascend-a2-hostpath",
    ),
    Mutation(
        "all replicas on one node",
        pods.replicas_are_spread,
        lambda m: pod(m.workload("tokenizer")).pop("topologySpreadConstraints"),
    ),
    Mutation(
        "a service that is left out",
        pods.both_services_are_there,
        lambda m: drop(m, "Deployment", "packserve-tokenizer"),
    ),
    Mutation(
        "an NPU asked for and a GPU used",
        pods.devices_fit_cards,
        lambda m: variable(executor(m), "EXECUTOR_DEVICE").update(value="cuda:0"),
    ),
    Mutation(
        "310P in bfloat16",
        pods.devices_fit_cards,
        lambda m: variable(executor(m), "EXECUTOR_DTYPE").update(value="bfloat16"),
        "ascend-310p",
    ),
    Mutation(
        "a surge pod that waits for a card",
        pods.no_pod_waits_for_the_card_of_the_one_that_it_replaces,
        lambda m: spec(m, "Deployment", "executor")["strategy"]["rollingUpdate"].update(maxSurge=1),
        "nvidia",
    ),
    Mutation(
        "a scaler of a name that nothing has",
        operation.scalers_have_targets_without_a_number_of_their_own,
        lambda m: spec(m, "HorizontalPodAutoscaler", "tokenizer")["scaleTargetRef"].update(name="tokenizer"),
    ),
    Mutation(
        "a number of replicas beside a scaler",
        operation.scalers_have_targets_without_a_number_of_their_own,
        lambda m: spec(m, "Deployment", "executor").update(replicas=1),
    ),
    Mutation(
        "scaling to no replica",
        operation.scalers_have_bounds,
        lambda m: spec(m, "ScaledObject", "executor").update(minReplicaCount=0),
    ),
    Mutation(
        "a share of CPU that is not asked for",
        operation.shares_are_of_what_pods_ask_for,
        lambda m: tokenizer(m)["resources"]["requests"].pop("cpu"),
    ),
    Mutation(
        "scaling by a series that nothing exports",
        operation.series_are_exported,
        lambda m: trigger(m).update(query='sum(packserve_waiting_requests{namespace="packserve"})'),
    ),
    Mutation(
        "scaling by the series of every namespace",
        operation.triggers_read_series_of_this_namespace,
        lambda m: trigger(m).update(query="sum(packserve_waiting_sequences)"),
    ),
    Mutation(
        "a budget that keeps a node from being emptied",
        operation.budgets_leave_one_to_go,
        lambda m: spec(m, "PodDisruptionBudget", "tokenizer").update(minAvailable=1),
    ),
    Mutation(
        "no look-up of names",
        operation.policies_let_names_be_looked_up,
        lambda m: spec(m, "NetworkPolicy", "tokenizer")["egress"].pop(),
    ),
    Mutation(
        "look-ups by UDP alone",
        operation.policies_let_names_be_looked_up,
        lambda m: spec(m, "NetworkPolicy", "executor")["egress"][-1]["ports"].pop(),
    ),
    Mutation(
        "executors that Prometheus cannot reach",
        operation.policies_let_through_what_is_needed_and_no_more,
        lambda m: spec(m, "NetworkPolicy", "executor")["ingress"].pop(),
    ),
)


def mutated(mutation: Mutation) -> Manifests:
    manifests = Manifests.of_overlay(OVERLAYS / mutation.overlay)
    assert list(mutation.rule(manifests)) == []
    mutation.make(manifests)
    return manifests


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.text)
def test_mistake_is_found(mutation: Mutation) -> None:
    assert list(mutation.rule(mutated(mutation))) != []


def test_every_rule_finds_a_mistake() -> None:
    assert {mutation.rule for mutation in MUTATIONS} == set(RULES)
