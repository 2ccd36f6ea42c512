# SPDX-License-Identifier: Apache-2.0
"""Rules and dashboards read only what the services export, and every alert tells what to do."""

from __future__ import annotations

import re

from k8s.monitoring.knobs import SEVERITIES
from protos.metrics import SECONDS_BUCKETS
from tests.fixtures.series import exported_series
from tests.monitoring.rendered import DASHBOARDS, KNOBS, alerts, panels, rules, series_in
from tokenizer_service.metrics import OUTCOMES

# Prometheus's own, one for each replica that it scrapes.
SCRAPED = {"up"}


def expressions() -> list[str]:
    shown = [target["expr"] for name in DASHBOARDS for panel in panels(name) for target in panel["targets"]]
    return [rule["expr"] for rule in rules()] + shown


def test_every_series_is_exported_or_recorded() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    known = exported_series() | recorded | SCRAPED | set(KNOBS.npu_exporter.series)
    read = {name for expr in expressions() for name in series_in(expr)}
    assert read - known == set()
    assert {"packserve_ready", "up", "npu_chip_info_power", "process_cpu_seconds_total"} < read


def test_outcomes_of_the_slo_are_the_services_own() -> None:
    assert {*KNOBS.slos.requests.bad, *KNOBS.slos.requests.ignored} < set(OUTCOMES)


def test_every_recorded_series_is_read() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    read = {name for expr in expressions() for name in series_in(expr)}
    assert recorded - read == set()
    assert all(re.fullmatch(r"packserve:[a-z_]+:[a-z]+_rate\d+[mhd]", name) for name in recorded)


def test_every_threshold_on_a_histogram_is_a_bucket_edge() -> None:
    """Of every bucket that a rule names: one between two edges would not exist, and its rule never fire."""
    edges = {edge for rule in rules() for edge in re.findall(r'le="([^"]+)"', rule["expr"])}
    assert edges
    assert {float(edge) for edge in edges} <= set(SECONDS_BUCKETS)


def test_every_alert_says_what_it_means_and_what_to_do() -> None:
    for alert in alerts():
        assert alert["alert"].startswith("Packserve")
        assert alert["labels"]["severity"] in SEVERITIES
        assert "for" in alert
        assert alert["annotations"].keys() == {"summary", "description", "runbook_url"}
        assert re.search(r"\d", alert["annotations"]["description"]), alert["alert"]
        assert alert["annotations"]["runbook_url"] == f"{KNOBS.runbook}#{alert['alert'].lower()}"


def test_alerts_of_one_name_differ_by_their_labels() -> None:
    known = [(alert["alert"], *sorted(alert["labels"].items())) for alert in alerts()]
    assert len(known) == len(set(known))
