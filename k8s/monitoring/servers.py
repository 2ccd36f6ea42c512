# SPDX-License-Identifier: Apache-2.0
"""Configurations of a Prometheus and an Alertmanager of one's own, on one machine.

Addresses stand in targets/*.json beside them, which whoever starts the servers writes.
"""

from __future__ import annotations

from typing import Any

from k8s.monitoring.knobs import Knobs


def _targets(name: str) -> list[dict[str, Any]]:
    return [{"files": [f"targets/{name}.json"], "refresh_interval": "1s"}]


def prometheus(rules_file: str, knobs: Knobs) -> dict[str, Any]:
    namespace = {"target_label": knobs.service_label, "replacement": knobs.local.namespace}
    return {
        "global": {"scrape_interval": knobs.local.interval, "evaluation_interval": knobs.local.interval},
        "rule_files": [rules_file],
        "alerting": {"alertmanagers": [{"file_sd_configs": _targets("alertmanager")}]},
        "scrape_configs": [
            {"job_name": job, "file_sd_configs": _targets(job), "relabel_configs": [namespace]}
            for job in (knobs.jobs.tokenizer, knobs.jobs.executor)
        ],
    }


def alertmanager(knobs: Knobs) -> dict[str, Any]:
    """Shows alerts and sends them nowhere: a receiver without an address."""
    together = ["alertname", knobs.service_label]
    quiet = {"source_matchers": ['severity="critical"'], "target_matchers": ['severity="warning"'], "equal": together}
    return {
        "route": {"receiver": "page", "group_by": together, "group_wait": "1s"},
        "receivers": [{"name": "page"}],
        "inhibit_rules": [quiet],
    }
