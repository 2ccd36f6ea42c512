# SPDX-License-Identifier: Apache-2.0
"""Monitoring as code: knobs.yaml to rules, alerts, scrape objects and dashboards. `python -m k8s.monitoring.render`."""
