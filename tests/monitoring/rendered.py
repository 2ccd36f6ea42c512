# SPDX-License-Identifier: Apache-2.0
"""What was rendered, as tests read it: rules, dashboards, and the names of the series in their expressions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import yaml

from k8s.monitoring.knobs import Knobs, load
from k8s.monitoring.render import RENDERED
from tests.fixtures.repository import ROOT

Json = dict[str, Any]

DASHBOARDS = ("service", "engine")
KNOBS: Knobs = load()


@cache
def dashboard(name: str) -> Json:
    loaded: Json = json.loads((ROOT / RENDERED / f"{name}.json").read_text())
    return loaded


def panels(name: str) -> Iterator[Json]:
    """Those in a collapsed row too, without the rows themselves."""
    for panel in dashboard(name)["panels"]:
        yield from panel["panels"] if panel["type"] == "row" else [panel]


@cache
def rules() -> list[Json]:
    groups = yaml.safe_load((ROOT / RENDERED / "rules.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[Json]:
    return [rule for rule in rules() if "alert" in rule]


def series_in(expr: str) -> set[str]:
    """Selectors are written with braces, and recorded series are known by their colons."""
    return set(re.findall(r"[a-zA-Z_:][\w:]*(?={)|\w+(?::\w+)+", expr))
