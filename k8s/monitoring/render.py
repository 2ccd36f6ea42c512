# SPDX-License-Identifier: Apache-2.0
"""Writes everything that is made from knobs.yaml: `python -m k8s.monitoring.render`.

k8s/components/monitoring is for a cluster; k8s/monitoring/rendered holds the dashboards and plain files for servers on
one machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from k8s.monitoring import manifests, servers
from k8s.monitoring.alert_rules import alert_groups
from k8s.monitoring.engine_dashboard import engine_dashboard
from k8s.monitoring.knobs import Knobs, load
from k8s.monitoring.rules import recording_groups
from k8s.monitoring.service_dashboard import service_dashboard

ROOT = Path(__file__).parents[2]
COMPONENT = Path("k8s/components/monitoring")
RENDERED = Path("k8s/monitoring/rendered")
HEADER = """\
# SPDX-License-Identifier: Apache-2.0
# Rendered from k8s/monitoring/knobs.yaml by `make monitoring`. Change it there.
"""


class Dumper(yaml.SafeDumper):
    """Longer strings line by line, and no anchors."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


def _text(dumper: Dumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


Dumper.add_representer(str, _text)


def to_yaml(*documents: Any) -> str:
    dumped = (yaml.dump(each, Dumper=Dumper, sort_keys=False, width=1000) for each in documents)
    return HEADER + "---\n".join(dumped)


def outputs(knobs: Knobs) -> dict[Path, str]:
    """Text of each rendered file, by its path in the repository."""
    groups = [*recording_groups(knobs), *alert_groups(knobs)]
    dashboards = {"service.json": service_dashboard(knobs), "engine.json": engine_dashboard(knobs)}
    component = {
        "apiVersion": manifests.KUSTOMIZE_API,
        "kind": "Component",
        "resources": ["podmonitors.yaml", "prometheusrule.yaml"],
        "components": ["../../monitoring/rendered"],
    }
    return {
        COMPONENT / "kustomization.yaml": to_yaml(component),
        COMPONENT / "podmonitors.yaml": to_yaml(*manifests.pod_monitors(knobs)),
        COMPONENT / "prometheusrule.yaml": to_yaml(manifests.prometheus_rule(groups, knobs)),
        RENDERED / "kustomization.yaml": to_yaml(manifests.dashboards_component(list(dashboards), knobs)),
        RENDERED / "rules.yaml": to_yaml({"groups": groups}),
        RENDERED / "prometheus.yaml": to_yaml(servers.prometheus("rules.yaml", knobs)),
        RENDERED / "alertmanager.yaml": to_yaml(servers.alertmanager(knobs)),
        **{RENDERED / name: json.dumps(each, indent=2) + "\n" for name, each in dashboards.items()},
    }


def main() -> None:
    for path, text in outputs(load()).items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text)


if __name__ == "__main__":
    main()
