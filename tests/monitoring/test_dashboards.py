# SPDX-License-Identifier: Apache-2.0
"""The dashboards are whole: panels beside each other, with units and legends, on the data source that one chooses."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from tests.monitoring.rendered import DASHBOARDS, KNOBS, dashboard, panels, series_in

pytestmark = pytest.mark.parametrize("name", DASHBOARDS)


def placed(name: str) -> list[dict[str, Any]]:
    """Panels and rows; those of a collapsed row are placed as if it were open."""
    return [*dashboard(name)["panels"], *(each for row in dashboard(name)["panels"] for each in row.get("panels", []))]


def test_panels_do_not_overlap(name: str) -> None:
    for one, other in combinations((panel["gridPos"] for panel in placed(name)), 2):
        is_beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        is_above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert is_beside or is_above, (one, other)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in placed(name))


def test_ids_and_titles_are_unique(name: str) -> None:
    ids = [panel["id"] for panel in placed(name)]
    assert len(ids) == len(set(ids))
    for row in [dashboard(name), *dashboard(name)["panels"]]:
        titles = [(panel["type"], panel["title"]) for panel in row.get("panels", [])]
        assert len(titles) == len(set(titles))


def test_every_panel_says_what_it_shows(name: str) -> None:
    for panel in panels(name):
        assert panel["description"].endswith(".")
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"]["uid"] == "${datasource}"
        refs = [target["refId"] for target in panel["targets"]]
        assert len(refs) == len(set(refs)) > 0
        legends = [target["legendFormat"] for target in panel["targets"]]
        assert len(legends) == len(set(legends))
        assert all(legends)
        if panel["type"] == "timeseries":
            assert panel["options"]["legend"]["showLegend"]


def test_thresholds_begin_below_everything_and_rise(name: str) -> None:
    with_thresholds = [each for each in panels(name) if "thresholds" in each["fieldConfig"]["defaults"]]
    assert with_thresholds
    for panel in with_thresholds:
        first, *rest = (step["value"] for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"])
        assert first is None
        assert rest == sorted(rest)


def test_variables_narrow_each_other(name: str) -> None:
    variables = {each["name"]: each for each in dashboard(name)["templating"]["list"]}
    assert list(variables) == ["datasource", "namespace", "job", "instance"]
    for narrowed, by in (("job", ["$namespace"]), ("instance", ["$namespace", "$job"])):
        assert all(variable in variables[narrowed]["query"]["query"] for variable in by)
    assert dashboard(name)["schemaVersion"] == 42
    assert dashboard(name)["refresh"] == KNOBS.dashboards.refresh


def test_panels_of_the_exporter_are_in_its_collapsed_row(name: str) -> None:
    """They have no data where it does not run, and only they: whoever asks for data everywhere leaves that row out."""
    for row in dashboard(name)["panels"]:
        is_its_row = row["title"] == KNOBS.npu_exporter.row
        assert row.get("collapsed", False) == is_its_row
        for panel in row.get("panels", []) if row["type"] == "row" else [row]:
            read = {series for target in panel["targets"] for series in series_in(target["expr"])}
            assert (read <= set(KNOBS.npu_exporter.series)) == is_its_row
