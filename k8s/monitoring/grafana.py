# SPDX-License-Identifier: Apache-2.0
"""Dashboards as Grafana's JSON: rows placed on its grid, the variables on top, the data source that one chooses."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

from k8s.monitoring.knobs import Knobs
from k8s.monitoring.panels import Panel, Row, Scope
from k8s.monitoring.promql import series

Json = dict[str, Any]

# As in Grafana 13's own default dashboard.
SCHEMA_VERSION = 42
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
GRID_WIDTH = 24
# Each kind's own look.
CUSTOM: dict[str, Json] = {"timeseries": {"lineWidth": 1, "fillOpacity": 10, "showPoints": "never"}}
OPTIONS: dict[str, Json] = {
    "timeseries": {
        "legend": {"displayMode": "table", "placement": "bottom", "showLegend": True, "calcs": ["lastNotNull", "max"]},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
}


def dashboard(name: str, description: str, rows: Iterable[Row], known_by: str, job: str, knobs: Knobs) -> Json:
    """known_by: a series that only this service's replicas have."""
    scope, shown = Scope(knobs.service_label), knobs.dashboards
    link = {"type": "dashboards", "title": "packserve", "tags": shown.tags, "keepTime": True, "includeVars": False}
    return {
        "uid": name.replace(" ", "-"),
        "title": name,
        "description": description,
        "tags": shown.tags,
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "timezone": "browser",
        "refresh": shown.refresh,
        "time": {"from": shown.since, "to": "now"},
        "templating": {
            "list": [
                {"type": "datasource", "name": "datasource", "label": "Data source", "query": "prometheus"},
                _variable("namespace", "Namespace", f"label_values({known_by}, {scope.label})"),
                _variable("job", "Job", f"label_values({series(known_by, scope.service)}, job)", job),
                _variable("instance", "Replica", f"label_values({series(known_by, scope.job)}, instance)"),
            ]
        },
        "links": [link | {"asDropdown": False, "icon": "external link", "targetBlank": False, "tooltip": ""}],
        "panels": _place(rows),
    }


def _variable(name: str, label: str, query: str, every: str = ".*") -> Json:
    """A label's values, all of them at first, which is what matches ``every``."""
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": DATASOURCE,
        "query": {"qryType": 1, "query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": every,
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _place(rows: Iterable[Row]) -> list[Json]:
    """Row by row from the left; what does not fit goes below."""
    placed: list[Json] = []
    ids = count(1)
    y = 0
    for row in rows:
        header: Json = {"id": next(ids), "type": "row", "title": row.title, "collapsed": row.is_collapsed, "panels": []}
        placed.append(header | {"gridPos": {"x": 0, "y": y, "w": GRID_WIDTH, "h": 1}})
        into = placed[-1]["panels"] if row.is_collapsed else placed
        y, x, line_height = y + 1, 0, 0
        for panel in row.panels:
            if x + panel.width > GRID_WIDTH:
                y, x, line_height = y + line_height, 0, 0
            into.append(_panel(panel, next(ids), x, y))
            x, line_height = x + panel.width, max(line_height, panel.height)
        y += line_height
    return placed


def _panel(panel: Panel, panel_id: int, x: int, y: int) -> Json:
    targets = enumerate(panel.targets.items())
    return {
        "id": panel_id,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.description,
        "datasource": DATASOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "targets": [_target(at, legend, expr, panel.kind) for at, (legend, expr) in targets],
        "fieldConfig": {"defaults": _defaults(panel), "overrides": []},
        "options": OPTIONS.get(panel.kind, {}) | panel.options,
    }


def _target(at: int, legend: str, expr: str, kind: str) -> Json:
    how: Json = {"instant": True} if kind == "stat" else {"range": True}
    if kind == "heatmap":
        how["format"] = "heatmap"
    target = {"refId": chr(ord("A") + at), "datasource": DATASOURCE, "editorMode": "code", "expr": expr}
    return target | {"legendFormat": legend} | how


def _defaults(panel: Panel) -> Json:
    """Of every field that a panel shows: unit, bounds, colours."""
    ends = {"min": panel.minimum, "max": panel.maximum}
    defaults: Json = {"unit": panel.unit} | {name: value for name, value in ends.items() if value is not None}
    custom = CUSTOM.get(panel.kind, {}) | panel.custom
    if panel.thresholds:
        # Grafana reads null as minus infinity.
        values = [None, *list(panel.thresholds)[1:]]
        colors = zip(values, panel.thresholds.values(), strict=True)
        steps = [{"value": value, "color": color} for value, color in colors]
        defaults["thresholds"] = {"mode": "absolute", "steps": steps}
        if panel.kind == "timeseries":
            custom = custom | {"thresholdsStyle": {"mode": "dashed"}}
    if panel.kind == "stat":
        defaults["color"] = {"mode": "thresholds"}
    return defaults | {"custom": custom}
