# SPDX-License-Identifier: Apache-2.0
"""Our two dashboards as the page and the tests read them: each panel with its expressions, ready to be asked.

Does not know how a panel is drawn, nor what an expression means.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RENDERED = Path(__file__).parents[1] / "rendered"
DASHBOARDS = ("service.json", "engine.json")
# What Grafana derives from the zoom. Fits the local scrape interval, and calls that come a few a second.
RATE_INTERVAL = "20s"
# Where no npu-exporter runs these have no data.
NPU_SERIES = re.compile(r"\bnpu_\w+")


@dataclass(frozen=True)
class Target:
    legend: str
    expr: str

    @property
    def needs_npu_exporter(self) -> bool:
        return NPU_SERIES.search(self.expr) is not None


@dataclass(frozen=True)
class Panel:
    dashboard: str
    row: str
    title: str
    description: str
    kind: str
    width: int
    defaults: dict[str, Any]
    options: dict[str, Any]
    targets: tuple[Target, ...]

    @property
    def needs_npu_exporter(self) -> bool:
        return all(target.needs_npu_exporter for target in self.targets)


def read_panels(rendered: Path = RENDERED) -> list[Panel]:
    """In reading order."""
    return [panel for name in DASHBOARDS for panel in _panels(json.loads((rendered / name).read_text()))]


def _panels(dashboard: dict[str, Any]) -> Iterator[Panel]:
    variables = _variables(dashboard)
    row = ""
    for given in dashboard["panels"]:
        if given["type"] == "row":
            row = given["title"]
            yield from (_panel(dashboard["title"], row, inner, variables) for inner in given["panels"])
        else:
            yield _panel(dashboard["title"], row, given, variables)


def _variables(dashboard: dict[str, Any]) -> dict[str, str]:
    """What stands for each name in an expression, with everything chosen."""
    shown = {each["name"]: each["allValue"] for each in dashboard["templating"]["list"] if each["type"] == "query"}
    return {"__rate_interval": RATE_INTERVAL} | shown


def _panel(dashboard: str, row: str, given: dict[str, Any], variables: dict[str, str]) -> Panel:
    return Panel(
        dashboard,
        row,
        given["title"],
        given["description"],
        given["type"],
        given["gridPos"]["w"],
        given["fieldConfig"]["defaults"],
        given["options"],
        tuple(Target(each["legendFormat"], _filled(each["expr"], variables)) for each in given["targets"]),
    )


def _filled(expr: str, variables: dict[str, str]) -> str:
    """Raises KeyError for a name that the dashboard does not declare."""
    return re.sub(r"\$(\w+)", lambda found: variables[found[1]], expr)
