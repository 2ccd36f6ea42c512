# SPDX-License-Identifier: Apache-2.0
"""Both services under load, a real Prometheus and Alertmanager with our rules, and a page that draws our dashboards.

`python -m k8s.monitoring.local`
"""
