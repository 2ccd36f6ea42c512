# SPDX-License-Identifier: Apache-2.0
"""Every overlay renders, is valid for the oldest and the newest Kubernetes that we name, and breaks no rule.

A rule that finds nothing shows little: test_mutations.py shows that each mistake is found.
"""

from __future__ import annotations

import os
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from k8s.monitoring import knobs
from tests.fixtures.repository import ROOT
from tests.k8s import operation, pods, references
from tests.k8s.manifests import OVERLAYS, Manifests, Rule, container, pod

KUBERNETES_VERSIONS = ("1.31", "1.37")
RULES: tuple[Rule, ...] = (*references.RULES, *pods.RULES, *operation.RULES)
COMPONENTS = ROOT / "k8s" / "components"
# Of objects that Kubernetes itself does not know; test_policies.py checks them.
CUSTOM_GROUPS = ("keda.sh/", "monitoring.coreos.com/")


def overlay_name(path: Path) -> str:
    return path.name


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS, ids=overlay_name)
def test_every_resource_is_valid(overlay: Path, version: str) -> None:
    for each in Manifests.of_overlay(overlay).resources:
        if not each["apiVersion"].startswith(CUSTOM_GROUPS):
            kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS, ids=overlay_name)
def test_no_rule_is_broken(overlay: Path) -> None:
    manifests = Manifests.of_overlay(overlay)
    assert [fault for rule in RULES for fault in rule(manifests)] == []


def test_pod_that_fills_the_volume_fits_the_overlays() -> None:
    manifests = Manifests.of_overlay(ROOT / "k8s" / "overlays" / "local-cpu")
    filling = yaml.safe_load((ROOT / "k8s" / "fill-models.yaml").read_text())
    for version in KUBERNETES_VERSIONS:
        kubernetes_validate.validate(filling, version, strict=True)
    spec, tokenizer = filling["spec"], manifests.workload("tokenizer")
    assert list(pods.pod_faults(spec)) == []
    assert {filling["metadata"]["namespace"]} == manifests.names("Namespace")
    assert spec["containers"][0]["image"] == container(tokenizer)["image"]
    claims = {volume["persistentVolumeClaim"]["claimName"] for volume in spec["volumes"]}
    assert claims == manifests.names("PersistentVolumeClaim")
    assert spec["securityContext"]["fsGroup"] == pod(tokenizer)["securityContext"]["fsGroup"]


def test_every_component_is_in_an_overlay() -> None:
    """So that all of them are rendered here."""
    seen: set[Path] = set()
    todo = list(OVERLAYS)
    while todo:
        path = todo.pop()
        listed = yaml.safe_load((path / "kustomization.yaml").read_text()).get("components", ())
        found = {(path / each).resolve() for each in listed} - seen
        seen |= found
        todo += found
    assert {path for path in COMPONENTS.iterdir() if path.is_dir()} - seen == set()


@pytest.mark.parametrize("device", [["cpu"], ["ascend-hostpath"], ["ascend", "ascend-310p"], ["nvidia"]], ids="+".join)
def test_production_takes_any_device(device: list[str], tmp_path: Path) -> None:
    """In place of its own, as its first lines say."""
    production = yaml.safe_load((ROOT / "k8s" / "overlays" / "production" / "kustomization.yaml").read_text())
    names = [*device, *(name for each in production["components"] if (name := Path(each).name) != "ascend")]
    assert len(names) == len(production["components"]) - 1 + len(device)
    production["components"] = [os.path.relpath(COMPONENTS / name, tmp_path) for name in names]
    production["resources"] = [os.path.relpath(ROOT / "k8s" / "base", tmp_path)]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(production))
    manifests = Manifests.of_overlay(tmp_path)
    assert [fault for rule in RULES for fault in rule(manifests)] == []


@pytest.mark.parametrize("overlay", OVERLAYS, ids=overlay_name)
def test_overlays_only_list(overlay: Path) -> None:
    assert [path.name for path in overlay.iterdir()] == ["kustomization.yaml"]
    keys = yaml.safe_load((overlay / "kustomization.yaml").read_text()).keys()
    assert keys == {"apiVersion", "kind", "namespace", "resources", "components"}


def test_an_executor_that_never_gets_ready_is_told_before_its_restart_begins_a_new_series() -> None:
    wait = knobs.load().alerts["NotReady"].for_
    assert wait.endswith("m")
    manifests = Manifests.of_overlay(ROOT / "k8s" / "overlays" / "production")
    probe = container(manifests.workload("executor"))["startupProbe"]
    assert 60 * int(wait.removesuffix("m")) < probe["periodSeconds"] * probe["failureThreshold"]
