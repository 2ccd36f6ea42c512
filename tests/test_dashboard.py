# SPDX-License-Identifier: Apache-2.0
"""The dashboard shows only series that the services export."""

from __future__ import annotations

import json
import re
from unittest.mock import MagicMock

from prometheus_client import CollectorRegistry

from executor_service.metrics import Metrics as ExecutorMetrics
from tests.fixtures.repository import ROOT
from tokenizer_service.metrics import Metrics as TokenizerMetrics

DASHBOARD = json.loads((ROOT / "k8s" / "dashboards" / "packserve.json").read_text())


def exported_series() -> set[str]:
    tokenizer, executor = CollectorRegistry(), CollectorRegistry()
    TokenizerMetrics(tokenizer, "model")
    engine = MagicMock(num_queued=0)
    engine.scheduler.pool = MagicMock(num_blocks=8, num_used=0)
    ExecutorMetrics(executor).watch(engine, "model")
    families = [*tokenizer.collect(), *executor.collect()]
    return {sample.name for family in families for sample in family.samples}


def test_every_series_is_exported() -> None:
    expressions = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    shown = {name for expression in expressions for name in re.findall(r"packserve_\w+", expression)}
    assert shown - exported_series() == set()


def test_panels_do_not_overlap() -> None:
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]}
    assert len(places) == len(DASHBOARD["panels"])
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
