# SPDX-License-Identifier: Apache-2.0
"""The dashboard shows only series that the services export."""

from __future__ import annotations

import json
import re

from tests.fixtures.repository import ROOT
from tests.fixtures.series import exported_series

DASHBOARD = json.loads((ROOT / "k8s" / "dashboards" / "packserve.json").read_text())


def test_every_series_is_exported() -> None:
    expressions = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    shown = {name for expression in expressions for name in re.findall(r"packserve_\w+", expression)}
    assert shown - exported_series() == set()


def test_panels_do_not_overlap() -> None:
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]}
    assert len(places) == len(DASHBOARD["panels"])
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
