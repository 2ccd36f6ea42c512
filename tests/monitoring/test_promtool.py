# SPDX-License-Identifier: Apache-2.0
"""Prometheus's and Alertmanager's own tools on what was rendered: every alert fires when it should, and clears."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.monitoring.render import RENDERED
from tests.fixtures.repository import ROOT
from tests.monitoring.rendered import DASHBOARDS, KNOBS, alerts, panels

FILES = ROOT / RENDERED
REPLICAS = {
    "T": f'job="{KNOBS.jobs.tokenizer}",{KNOBS.service_label}="packserve",instance="10.0.0.1:9101"',
    **{
        f"E{at}": f'job="{KNOBS.jobs.executor}",{KNOBS.service_label}="packserve",instance="10.0.1.{at}:9102"'
        for at in range(3)
    },
}
FIRING = 'count by (alertname, window) (ALERTS{alertstate="firing"})'
Scenario = dict[str, Any]

loaded = yaml.safe_load(Path(__file__).with_name("scenarios.yaml").read_text())
HEALTHY: dict[str, str] = loaded["healthy"]
SCENARIOS: list[Scenario] = loaded["scenarios"]


def run(tool: str, *arguments: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    assert shutil.which(tool), f"{tool}: install Debian's prometheus and prometheus-alertmanager"
    return subprocess.run([tool, *arguments], capture_output=True, text=True, **more)


def assert_passes(tool: str, *arguments: str | Path) -> None:
    done = run(tool, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr


def full(series: str) -> str:
    return re.sub(r"(?<={)(T|E\d)\b", lambda found: REPLICAS[found[0]], series)


def alert_labels(alert: str) -> str:
    name, _, window = alert.partition("@")
    return f'{{alertname="Packserve{name}"' + (f',window="{window}"}}' if window else "}")


def promtool_test(scenario: Scenario, **more: Any) -> dict[str, Any]:
    """The scenario as a file of `promtool test rules`."""
    interval = scenario.get("interval", "1m")
    series = HEALTHY | scenario.get("series", {})
    firing = [
        {
            "expr": FIRING,
            "eval_time": f"{minute}m",
            "exp_samples": [{"labels": alert_labels(alert), "value": 1} for alert in expected],
        }
        for minute, expected in scenario["at"].items()
    ]
    values = [
        {
            "expr": record,
            "eval_time": f"{max(scenario['at'])}m",
            "exp_samples": [{"labels": f'{record}{{{KNOBS.service_label}="packserve"}}', "value": value}],
        }
        for record, value in scenario.get("values", {}).items()
    ]
    test = {
        "interval": interval,
        "input_series": [{"series": full(name), "values": value} for name, value in series.items()],
        "promql_expr_test": firing + values,
    }
    return {
        "rule_files": [str(FILES / "rules.yaml")],
        "evaluation_interval": interval,
        # Otherwise in no order, and a burn rate is sometimes that of the interval before.
        "group_eval_order": [group["name"] for group in yaml.safe_load((FILES / "rules.yaml").read_text())["groups"]],
        "tests": [test | more],
    }


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario["title"])
def test_alerts_that_hold_are_exactly_those_expected(scenario: Scenario, tmp_path: Path) -> None:
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(promtool_test(scenario)))
    assert_passes("promtool", "test", "rules", tmp_path / "test.yaml")


def test_scenarios_make_every_alert_fire_and_clear() -> None:
    """And every pair of windows of a burn rate."""
    known = {"@".join([alert["alert"], *filter(None, [alert["labels"].get("window")])]) for alert in alerts()}
    fired, cleared = set(), set()
    for scenario in SCENARIOS:
        *before, last = scenario["at"].values()
        fired |= {f"Packserve{alert}" for expected in before for alert in expected}
        cleared |= {f"Packserve{alert}" for expected in before for alert in expected if alert not in last}
    assert fired == cleared == known


@pytest.mark.slow
def test_alert_tells_its_numbers(tmp_path: Path) -> None:
    (scenario,) = (each for each in SCENARIOS if each["title"] == "a step does not end")
    annotations = {
        "summary": "An executor's step does not end",
        "description": "The last step of 10.0.1.0:9102 ended 210 s ago with work to do (limit 60 s).",
        "runbook_url": f"{KNOBS.runbook}#packserveenginestuck",
    }
    labels = dict(re.findall(r'(\w+)="([^"]*)"', REPLICAS["E0"])) | {"severity": "critical"}
    expected = {"exp_labels": labels, "exp_annotations": annotations}
    test = {"eval_time": "14m", "alertname": "PackserveEngineStuck", "exp_alerts": [expected]}
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(promtool_test(scenario, alert_rule_test=[test])))
    assert_passes("promtool", "test", "rules", tmp_path / "test.yaml")


@pytest.mark.slow
def test_configurations_are_valid(tmp_path: Path) -> None:
    folder = shutil.copytree(FILES, tmp_path / "rendered")
    (folder / "targets").mkdir()
    for name in (KNOBS.jobs.tokenizer, KNOBS.jobs.executor, "alertmanager"):
        (folder / "targets" / f"{name}.json").write_text('[{"targets": ["127.0.0.1:9101"]}]')
    assert_passes("promtool", "check", "rules", folder / "rules.yaml")
    assert_passes("promtool", "check", "config", folder / "prometheus.yaml")
    assert_passes("amtool", "check-config", folder / "alertmanager.yaml")


@pytest.mark.slow
def test_alertmanager_routes_every_alert_somewhere() -> None:
    for alert in alerts():
        labels = [f"{name}={value}" for name, value in alert["labels"].items()]
        done = run("amtool", "config", "routes", "test", f"--config.file={FILES / 'alertmanager.yaml'}", *labels)
        assert done.stdout.strip() == "page"


@pytest.mark.slow
@pytest.mark.parametrize("name", DASHBOARDS)
def test_prometheus_takes_every_expression_of_a_dashboard(name: str, tmp_path: Path) -> None:
    """As Grafana would send it, with a value for each variable."""
    shown = [target["expr"] for panel in panels(name) for target in panel["targets"]]
    exprs = [re.sub(r"\$(namespace|job|instance)", ".*", each.replace("$__rate_interval", "1m")) for each in shown]
    assert not any("$" in each for each in exprs)
    rules = [{"record": f"shown:panel:{at}", "expr": each} for at, each in enumerate(exprs)]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "shown", "rules": rules}]}))
    assert_passes("promtool", "check", "rules", tmp_path / "rules.yaml")
