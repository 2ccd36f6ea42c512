# SPDX-License-Identifier: Apache-2.0
"""Alerts as Prometheus reads them: those of alerts.py, and the burn rates of the two SLOs over pairs of windows."""

from __future__ import annotations

from typing import Any

from k8s.monitoring.alerts import SHARE, alerts
from k8s.monitoring.knobs import BurnRate, Knobs
from k8s.monitoring.rules import Slo, slos
from protos.errors import ConfigError

PREFIX = "Packserve"


def burn_alert(name: str, slo: Slo, burn: BurnRate, knobs: Knobs) -> dict[str, Any]:
    limit = f"{burn.factor:g} * {slo.budget:g}"
    expr = (
        f"{slo.record}{burn.long} > {limit}\nand {slo.record}{burn.short} > {limit}\n"
        f"and ({slo.num_bad(burn.long)}) >= {knobs.min_bad_calls}"
    )
    description = (
        f"{SHARE} were bad over {burn.long} and more than {burn.factor * slo.budget:.4g} of all over {burn.short}: "
        f"the budget of {slo.goal} burns {burn.factor:g} times too fast."
    )
    labels = {"severity": burn.severity, "window": burn.long}
    return rule(name, expr, burn.for_, labels, f"{slo.title}: the error budget burns too fast", description, knobs)


def rule(
    name: str, expr: str, for_: str, labels: dict[str, str], summary: str, description: str, knobs: Knobs
) -> dict[str, Any]:
    runbook_url = f"{knobs.runbook}#{(PREFIX + name).lower()}"
    annotations = {"summary": summary, "description": description, "runbook_url": runbook_url}
    return {"alert": PREFIX + name, "expr": expr, "for": for_, "labels": labels, "annotations": annotations}


def alert_groups(knobs: Knobs) -> list[dict[str, Any]]:
    known = alerts(knobs)
    if differing := {alert.name for alert in known} ^ knobs.alerts.keys():
        raise ConfigError(f"alerts: unknown or missing {sorted(differing)}")
    first_token, requests = slos(knobs)
    burns = [
        burn_alert(name, slo, burn, knobs)
        for name, slo in (("TimeToFirstTokenBurn", first_token), ("ErrorBurn", requests))
        for burn in knobs.burn_rates
    ]
    rest = []
    for alert in known:
        knob = knobs.alerts[alert.name]
        labels = {"severity": knob.severity}
        expr, description = alert.expr(knob), alert.description(knob)
        rest.append(rule(alert.name, expr, knob.for_, labels, alert.summary, description, knobs))
    return [{"name": "packserve-burn", "rules": burns}, {"name": "packserve-alerts", "rules": rest}]
