# SPDX-License-Identifier: Apache-2.0
"""The device tests of suite/ through the real torch_npu, on libraries of CANN made here that compute nothing.

Makes the environment that they run in, builds those libraries, and runs the suite once for each kind of chip. Does not
know what the tests check.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from tests.fixtures.repository import ROOT
from tests.npu.build_stub import build

VENV = ROOT / ".venv-npu"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "requirements.txt"
PLATFORM = f"{sys.platform} {platform.machine()}"
HAS_WHEEL = PLATFORM in ("linux x86_64", "linux aarch64")
SETTINGS = {
    # Work is done in the thread that asks for it, so that what it was asked for is known afterwards.
    "TASK_QUEUE_ENABLE": "0",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    "TORCH_NPU_FALLBACK_CPU_DISABLE": "1",
    "OMP_NUM_THREADS": "2",
    "PYTHONPATH": str(ROOT),
    "PYTHONDONTWRITEBYTECODE": "1",
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(not HAS_WHEEL, reason=f"NOT TESTED: torch_npu has no wheel for {PLATFORM}"),
]


def requirements() -> str:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    return "\n".join([*project["dependencies"], *extras["executor"], *extras["npu"], "pytest"])


@pytest.fixture(scope="module")
def package() -> Path:
    """The installed torch_npu, of the version in constraints.txt; installed anew only when requirements changed."""
    stamp = requirements() + "\n" + (ROOT / "constraints.txt").read_text()
    if not STAMP.exists() or STAMP.read_text() != stamp:
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        install = [PYTHON, "-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
        subprocess.run([*install, *requirements().splitlines()], check=True)
        STAMP.write_text(stamp)
    [found] = VENV.glob("lib/python*/site-packages/torch_npu")
    return found


@pytest.fixture(scope="module")
def libraries(package: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("stub")
    build(package, out)
    return out


@pytest.mark.parametrize("soc", ["Ascend910B2", "Ascend310P3"])
def test_suite(soc: str, libraries: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = ["--rootdir", str(ROOT), "-c", "tests/npu/suite.ini", "--confcutdir", "tests/npu/suite", "tests/npu/suite"]
    env = os.environ | SETTINGS | {"LD_LIBRARY_PATH": str(libraries), "STUB_SOC": soc}
    start_s = time.monotonic()
    ran = subprocess.run(
        [PYTHON, "-m", "pytest", "-q", *suite], cwd=ROOT, env=env, capture_output=True, text=True, check=False
    )
    with capsys.disabled():
        print(f"\n{soc}: {last_line(ran.stdout)}; {time.monotonic() - start_s:.0f} s with the start")
    assert ran.returncode == 0, ran.stdout + ran.stderr


def last_line(text: str) -> str:
    return next(reversed(text.splitlines()), "nothing")
