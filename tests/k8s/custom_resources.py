# SPDX-License-Identifier: Apache-2.0
"""A script for the scanners' environment: checks objects of KEDA and of the Prometheus operator, read from stdin.

Against their published models, closed: a field that they do not know is a fault. Prints one fault a line.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import jsonschema
import yaml
from cloudcoil.models.keda import v1alpha1
from cloudcoil.models.prometheus_operator import v1

MODELS = {
    "keda.sh/v1alpha1": {"ScaledObject": v1alpha1.ScaledObject},
    "monitoring.coreos.com/v1": {
        "PodMonitor": v1.PodMonitor,
        "PrometheusRule": v1.PrometheusRule,
        "ServiceMonitor": v1.ServiceMonitor,
    },
}


def closed(schema: Any) -> Any:
    """The schema, with no more properties than it names."""
    if isinstance(schema, dict):
        open_ = {key: closed(value) for key, value in schema.items()}
        return {"additionalProperties": False} | open_ if "properties" in schema else open_
    return [closed(each) for each in schema] if isinstance(schema, list) else schema


def faults(resource: dict[str, Any]) -> Iterator[str]:
    schema = closed(MODELS[resource["apiVersion"]][resource["kind"]].model_json_schema())
    for error in jsonschema.Draft202012Validator(schema).iter_errors(resource):
        yield f"{resource['kind']} {resource['metadata']['name']}: {error.json_path}: {error.message[:300]}"


if __name__ == "__main__":
    for each in yaml.safe_load_all(sys.stdin):
        if each["apiVersion"] in MODELS:
            print("\n".join(faults(each)))
