# SPDX-License-Identifier: Apache-2.0
"""The dashboards are what Grafana's own published types say a dashboard is. (No Grafana is started.)"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from k8s.monitoring.render import RENDERED
from tests.fixtures.repository import ROOT
from tests.monitoring.rendered import DASHBOARDS

PACKAGES = ("@grafana/schema@13.2.3", "typescript@5")
COMPILE = (
    "node_modules/.bin/tsc --noEmit --strict --skipLibCheck --module esnext --moduleResolution bundler dashboard.ts"
)
# The types name values of enumerations; JSON has the values themselves.
SOURCE = """\
import type {{ Dashboard }} from "@grafana/schema";
type Json<T> = T extends string ? `${{T}}` : T extends object ? {{ [K in keyof T]: Json<T[K]> }} : T;
export const dashboard: Json<Partial<Dashboard>> = {json};
"""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("npm") is None, reason="needs npm")]


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grafana")
    subprocess.run(["npm", "install", "--ignore-scripts", "--no-audit", *PACKAGES], cwd=folder, check=True)
    return folder


def errors(compiler: Path, json: str) -> str:
    (compiler / "dashboard.ts").write_text(SOURCE.format(json=json))
    return subprocess.run(shlex.split(COMPILE), cwd=compiler, capture_output=True, text=True).stdout


@pytest.mark.parametrize("name", DASHBOARDS)
def test_dashboard_has_grafanas_types(compiler: Path, name: str) -> None:
    assert errors(compiler, (ROOT / RENDERED / f"{name}.json").read_text()) == ""


@pytest.mark.parametrize(
    ("right", "wrong"), [('"unit"', '"unitt"'), ('"w": 8', '"w": "8"'), ('"mode": "absolute"', '"mode": "absolut"')]
)
def test_types_refuse_what_is_wrong(compiler: Path, right: str, wrong: str) -> None:
    """A misspelt field, a wrong type, a value that an enumeration does not have: the test above sees them."""
    json = (ROOT / RENDERED / "engine.json").read_text()
    assert right in json
    assert "error TS" in errors(compiler, json.replace(right, wrong, 1))
