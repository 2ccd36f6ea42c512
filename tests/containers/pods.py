# SPDX-License-Identifier: Apache-2.0
"""The rendered local overlay as pods on one bridge network.

podman plays its Deployments and does what their pods say; it passes over Services, probes and preStop. The name that
the executors' headless Service has in a cluster is an alias in the network's DNS here, and the claim is a volume of
that name over a directory.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.containers.engine import Engine, run

NETWORK = "packserve-test"
SERVICES = ("executor", "tokenizer")


@dataclass(frozen=True)
class Pod:
    engine: Engine
    service: str
    container: str
    infra: str
    grace_s: int

    @property
    def address(self) -> str:
        """Another one after each start: the pod stops with its last container."""
        networks = json.loads(self.engine.podman("inspect", self.infra))[0]["NetworkSettings"]["Networks"]
        return str(networks[NETWORK]["IPAddress"])

    def python(self, source: str) -> str:
        return self.engine.podman("exec", self.container, "python", "-c", source)

    def stop(self) -> int:
        """As a cluster does after preStop: SIGTERM to the container's first process. Returns its exit code."""
        self.engine.podman("stop", "--time", str(self.grace_s), self.container)
        return int(self.engine.podman("inspect", "--format", "{{.State.ExitCode}}", self.container))

    def start(self) -> None:
        self.engine.podman("start", self.container)

    def logs(self) -> str:
        return self.engine.logs(self.container)


def rendered() -> dict[str, Any]:
    """Deployments by service."""
    kubectl = str(Path(sys.executable).parent / "kubectl")
    resources = yaml.safe_load_all(run(kubectl, "kustomize", str(Path(__file__).parent)))
    deployments = [each for each in resources if each["kind"] == "Deployment"]
    return {each["metadata"]["name"].removeprefix("packserve-"): each for each in deployments}


@contextmanager
def playing(engine: Engine, model: Path) -> Iterator[dict[str, Pod]]:
    models = engine.work / "models"
    if not models.exists():
        shutil.copytree(model, models / model.name)
    engine.podman("network", "create", NETWORK)
    options = ("--opt=type=none", "--opt=o=bind", f"--opt=device={models}")
    engine.podman("volume", "create", *options, "packserve-models")
    files = {service: engine.work / f"{service}.yaml" for service in SERVICES}
    try:
        yield {service: _play(engine, service, path, rendered()[service]) for service, path in files.items()}
    finally:
        engine.podman("pod", "rm", "--all", "--force", "--time", "2")
        engine.podman("volume", "rm", "packserve-models")
        engine.podman("network", "rm", NETWORK)


def _play(engine: Engine, service: str, path: Path, deployment: dict[str, Any]) -> Pod:
    path.write_text(yaml.safe_dump(deployment))
    engine.podman("play", "kube", f"--network={NETWORK}:alias=packserve-{service}", str(path))
    containers = json.loads(engine.podman("ps", "--all", "--format", "json"))
    ((name, pod),) = (
        (each["Names"][0], each["Pod"]) for each in containers if each["Names"][0].endswith(f"-{service}")
    )
    infra = engine.podman("pod", "inspect", "--format", "{{.InfraContainerID}}", pod)
    grace_s = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    return Pod(engine, service, name, infra, grace_s)
