# SPDX-License-Identifier: Apache-2.0
"""What a dashboard is made of: panels and rows, and the kinds of panel that both dashboards have.

Knows no series of its own, and not Grafana's JSON (grafana.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from k8s.monitoring.knobs import Knobs
from k8s.monitoring.promql import increase, quantile, rate, series, sum_by

# What a panel's rate is taken over: Grafana knows the scrape interval and the zoom.
WINDOW = "$__rate_interval"
BY_REPLICA = "{{instance}}"
# Of what should be 1 at least.
AT_LEAST_ONE: dict[float, str] = {0: "red", 1: "green"}


@dataclass(frozen=True)
class Panel:
    """targets: legend to expression. thresholds: a number to the colour from there on, the first one also below."""

    title: str
    description: str
    targets: dict[str, str]
    unit: str
    kind: str = "timeseries"
    width: int = 8
    height: int = 8
    minimum: float | None = 0
    maximum: float | None = None
    thresholds: dict[float, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    custom: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]
    is_collapsed: bool = False


@dataclass(frozen=True)
class Scope:
    """Matchers from the variables on top: what a whole service exports, and what the chosen replicas do."""

    label: str

    @property
    def service(self) -> str:
        return f'{self.label}=~"$namespace"'

    @property
    def job(self) -> str:
        return f'{self.service},job=~"$job"'

    @property
    def replica(self) -> str:
        return f'{self.job},instance=~"$instance"'


def stat(title: str, description: str, expr: str, unit: str = "short", **more: Any) -> Panel:
    """One number, as it is now."""
    options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "value", "graphMode": "none"}
    return Panel(title, description, {title: expr}, unit, "stat", width=4, height=4, **{"options": options} | more)


def stacked(panel: Panel) -> Panel:
    return replace(panel, custom={"stacking": {"mode": "normal"}, "fillOpacity": 30})


class Board:
    """Panels of one service's chosen replicas."""

    def __init__(self, knobs: Knobs) -> None:
        self.knobs = knobs
        self.scope = Scope(knobs.service_label)
        self.slowest = max(knobs.dashboards.quantiles)

    def of(self, name: str, *matchers: str) -> str:
        return series(name, self.scope.replica, *matchers)

    def rate(self, name: str, *matchers: str) -> str:
        return rate(self.of(name, *matchers), WINDOW)

    def by_replica(self, title: str, description: str, expr: str, unit: str = "short", **more: Any) -> Panel:
        return Panel(title, description, {BY_REPLICA: expr}, unit, **more)

    def quantiles(self, title: str, description: str, histogram: str, **more: Any) -> Panel:
        of = {f"p{q * 100:g}": self.quantile(q, histogram) for q in self.knobs.dashboards.quantiles}
        return Panel(title, description, of, "s", **more)

    def quantile(self, q: float, histogram: str) -> str:
        return quantile(q, histogram, self.scope.replica, WINDOW)

    def heatmap(self, title: str, description: str, histogram: str) -> Panel:
        options = {
            "calculate": False,
            "yAxis": {"unit": "s", "axisPlacement": "left"},
            "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64, "scale": "exponential", "exponent": 0.5},
            "filterValues": {"le": 1e-9},
            "legend": {"show": True},
        }
        buckets = sum_by("le", increase(self.of(f"{histogram}_bucket"), WINDOW))
        return Panel(title, description, {"{{le}}": buckets}, "short", "heatmap", minimum=None, options=options)

    def limits(self, limit: float) -> dict[float, str]:
        """Green, yellow near the limit, red from it on."""
        return {0: "green", round(limit * self.knobs.dashboards.warn_share, 9): "yellow", limit: "red"}

    def limits_of(self, alert: str) -> dict[float, str]:
        return self.limits(self.knobs.alerts[alert].threshold)
