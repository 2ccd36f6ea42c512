# SPDX-License-Identifier: Apache-2.0
"""What docs/deploy.md says of overlays, settings, sizes and times is so, and its example is valid.

Its balancing is tried in tests/balancing.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from executor_service.__main__ import main as executor_command
from tests.balancing.callers import DEPLOY, fenced
from tests.fixtures.repository import ROOT
from tokenizer_service.__main__ import main as tokenizer_command

K8S = ROOT / "k8s"
OVERLAYS = {path.parent.name: path for path in (K8S / "overlays").glob("*/kustomization.yaml")}
SETTINGS = {
    f"{prefix}_{option.name}".upper()
    for prefix, command in (("executor", executor_command), ("tokenizer", tokenizer_command))
    for option in command.params
}


def rendered(directory: Path) -> list[dict[str, Any]]:
    command = [str(Path(sys.executable).parent / "kubectl"), "kustomize", str(directory)]
    return list(yaml.safe_load_all(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def deployments(overlay: str) -> dict[str, dict[str, Any]]:
    """Of each service."""
    found = [each for each in rendered(K8S / "overlays" / overlay) if each["kind"] == "Deployment"]
    return {each["metadata"]["name"].removeprefix("packserve-"): each["spec"] for each in found}


def test_overlays_are_listed_with_their_components() -> None:
    rows = dict(re.findall(r"^\| `([\w-]+)` \|[^|]*\|([^|]*)\|$", DEPLOY, re.MULTILINE))
    listed = {name: {each.strip() for each in cell.split(",")} for name, cell in rows.items()}
    assert listed == {
        name: {Path(each).name for each in yaml.safe_load(path.read_text())["components"]}
        for name, path in OVERLAYS.items()
    }


@pytest.mark.parametrize("page", ["deploy.md", "runbook.md"])
def test_settings_are_those_of_the_services(page: str) -> None:
    text = (ROOT / "docs" / page).read_text()
    assert set(re.findall(r"\b(?:EXECUTOR|TOKENIZER)_[A-Z_]+", text)) - SETTINGS == set()


def test_example_overlay_renders_and_is_valid(tmp_path: Path) -> None:
    """As a directory beside a checkout named packserve."""
    (tmp_path / "packserve").mkdir()
    subprocess.run(["cp", "-r", K8S, tmp_path / "packserve"], check=True)
    (tmp_path / "kustomization.yaml").write_text(fenced("registry.example.com/packserve-executor"))
    resources = rendered(tmp_path)
    for each in resources:
        if "monitoring.coreos.com" not in each["apiVersion"]:
            kubernetes_validate.validate(each, "1.37", strict=True)
    specs = {each["metadata"]["name"]: each["spec"] for each in resources if each["kind"] == "Deployment"}
    assert specs["packserve-executor"]["replicas"] == 3
    for spec in specs.values():
        (container,) = spec["template"]["spec"]["containers"]
        assert container["image"].startswith("registry.example.com/")
        assert {"/models/qwen3-8b"} == {each["value"] for each in container["env"] if each["name"].endswith("_MODEL")}


@pytest.mark.parametrize(
    ("row", "overlay", "service"),
    [
        ("tokenizer", "local-cpu", "tokenizer"),
        ("executor, CPU", "local-cpu", "executor"),
        ("executor, card", "nvidia", "executor"),
    ],
)
def test_sizes_are_those_of_the_manifests(row: str, overlay: str, service: str) -> None:
    pod = deployments(overlay)[service]["template"]["spec"]
    resources = pod["containers"][0]["resources"]
    limits = [each["emptyDir"]["sizeLimit"] for each in pod["volumes"] if "emptyDir" in each]
    said = re.search(rf"^\| {row} \| (\d+) CPU, (\w+)[^|]*\| (\w+) \|([^|]*)\|", DEPLOY, re.MULTILINE)
    assert said
    assert said.groups()[:3] == (
        resources["requests"]["cpu"],
        resources["requests"]["memory"],
        resources["limits"]["memory"],
    )
    assert sorted(re.findall(r"\d+[MG]i", said[4])) == sorted(limits)


@pytest.mark.parametrize("service", ["tokenizer", "executor"])
def test_times_of_a_drain_are_those_of_the_manifests(service: str) -> None:
    pod = deployments("local-cpu")[service]["template"]["spec"]
    (container,) = pod["containers"]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    assert f"`preStop` waits {container['lifecycle']['preStop']['sleep']['seconds']} s" in DEPLOY
    assert f"open calls have {environment[f'{service.upper()}_DRAIN_TIMEOUT_S']} s" in DEPLOY
    assert f"killed after {pod['terminationGracePeriodSeconds']} s" in DEPLOY


def test_time_to_load_is_that_of_the_startup_probe() -> None:
    probe = deployments("local-cpu")["executor"]["template"]["spec"]["containers"][0]["startupProbe"]
    minutes = probe["periodSeconds"] * probe["failureThreshold"] // 60
    assert f"An executor has {minutes} minutes to load" in DEPLOY


def test_files_and_folders_named_exist() -> None:
    named = re.findall(r"`((?:k8s|tests|docs|tokenizer_service|executor_service)/[\w./-]+)`", DEPLOY)
    assert named
    assert [name for name in named if not os.path.exists(ROOT / name)] == []
