# SPDX-License-Identifier: Apache-2.0
"""Everything is rendered from knobs.yaml, is current, and a knob that can't be right stops the rendering."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from k8s.monitoring.knobs import PATH, AlertKnobs, Knobs, parse
from k8s.monitoring.render import COMPONENT, RENDERED, outputs
from protos.errors import ConfigError
from protos.metrics import SECONDS_BUCKETS
from tests.fixtures.repository import ROOT
from tests.monitoring.rendered import KNOBS


def knobs_with(path: str, value: Any) -> Knobs:
    """knobs.yaml with one value another, by its keys with dots between."""
    data = yaml.safe_load(PATH.read_text())
    *parents, name = path.split(".")
    place = data
    for parent in parents:
        place = place[parent]
    place[name] = value
    return parse(Knobs, data, "knobs.yaml")


def test_rendered_files_are_current() -> None:
    for path, text in outputs(KNOBS).items():
        assert (ROOT / path).read_text() == text, f"{path}: run `make monitoring`"


def test_nothing_else_lies_beside_rendered_files() -> None:
    found = {path.relative_to(ROOT) for folder in (COMPONENT, RENDERED) for path in (ROOT / folder).rglob("*.*")}
    assert found == outputs(KNOBS).keys()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("slos.time_to_first_token.threshold_s", 3.0, r"threshold_s=3\.0: must be one of"),
        ("slos.requests.objective", 99.9, "between 0 and 1"),
        ("slos.requests.objektive", 0.9, "unknown or missing .*objektive"),
        ("alerts.EngineStuck.threshold", "60", "EngineStuck.threshold='60': must be float"),
        ("alerts.EngineStuck.severity", "urgent", "severity urgent: must be one of"),
        ("alerts.EngineStuck.for", "1 minute", "'1 minute': must be a number with one of"),
        ("dashboards.tags", "packserve", "tags='packserve': must be"),
        ("scrape", {"port": "metrics"}, "scrape: unknown or missing .*interval"),
    ],
)
def test_wrong_knob_is_refused_by_name(path: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        knobs_with(path, value)


@pytest.mark.parametrize("edge", [0.5, 1.0, 2.0, 60.0])
def test_every_bucket_edge_can_be_the_slo(edge: float) -> None:
    """The label `le` is written as the service writes it, so that the rule finds the bucket."""
    assert edge in SECONDS_BUCKETS
    text = outputs(knobs_with("slos.time_to_first_token.threshold_s", edge))[RENDERED / "rules.yaml"]
    assert f'le="{edge}"' in text


def test_alert_without_knobs_or_knobs_without_alert_are_refused() -> None:
    extra = KNOBS.alerts | {"Unknown": AlertKnobs("1m", "warning")}
    missing = {name: knob for name, knob in KNOBS.alerts.items() if name != "EngineStuck"}
    for alerts in (extra, missing):
        with pytest.raises(ConfigError, match="unknown or missing"):
            outputs(replace(KNOBS, alerts=alerts))


def test_one_knob_reaches_the_rule_and_the_panel() -> None:
    changed = outputs(knobs_with("alerts.KVSaturated.threshold", 0.625))
    assert 'packserve_kv_usage_ratio{job="packserve-executor"} > 0.625' in changed[RENDERED / "rules.yaml"]
    assert '"value": 0.625' in changed[RENDERED / "engine.json"]
