# SPDX-License-Identifier: Apache-2.0
"""docs/runbook.md has a section for each alert; Prometheus takes its queries, the services write its log lines."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.fixtures.repository import PACKAGES, ROOT, modules

RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
RULES = ROOT / "k8s" / "monitoring" / "rendered" / "rules.yaml"
SECTIONS = dict(re.findall(r"^## (\w+)\n(.*?)(?=^## |\Z)", RUNBOOK, re.MULTILINE | re.DOTALL))


def alerts() -> list[dict[str, str]]:
    """Those of the rendered rules, by name and link."""
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    return [{"name": each["alert"], "url": each["annotations"]["runbook_url"]} for each in rules if "alert" in each]


def test_each_alert_has_its_section_and_no_section_is_orphaned() -> None:
    assert SECTIONS.keys() == {alert["name"] for alert in alerts()}


def test_each_link_leads_to_a_section() -> None:
    anchors = {name.lower() for name in SECTIONS}
    assert {alert["url"].split("#")[1] for alert in alerts()} == anchors
    assert set(re.findall(r"\]\(#([\w-]+)\)", RUNBOOK)) <= anchors


@pytest.mark.parametrize("name", SECTIONS)
def test_each_section_says_what_it_means_what_to_look_at_and_what_to_do(name: str) -> None:
    parts = [SECTIONS[name].find(f"**{part}** ") for part in ("Means", "Do")]
    assert 0 < parts[0] < SECTIONS[name].find("**Look**") < SECTIONS[name].find("```promql") < parts[1]


def test_log_lines_are_those_that_are_written() -> None:
    sources = "".join(path.read_text() for package in PACKAGES for _, path in modules(package))
    said = re.findall(r"(?:tokenizer|executor) log: `([^`]+)`", RUNBOOK)
    assert len(said) > 10
    assert [line for line in said if line.split("ADDRESS")[0].strip() not in sources] == []


@pytest.mark.slow
def test_prometheus_takes_every_query(tmp_path: Path) -> None:
    queries = [line for block in re.findall(r"```promql\n(.*?)```", RUNBOOK, re.DOTALL) for line in block.splitlines()]
    rules = [{"record": f"runbook:query:{i}", "expr": query} for i, query in enumerate(queries)]
    path = tmp_path / "rules.yaml"
    path.write_text(json.dumps({"groups": [{"name": "runbook", "rules": rules}]}))
    result = subprocess.run(["promtool", "check", "rules", path], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
