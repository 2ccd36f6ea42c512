# SPDX-License-Identifier: Apache-2.0
"""The committed stubs are what ``make protos`` makes of the .proto files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.fixtures.repository import ROOT, is_generated

FOLDER = Path("protos", "packserve", "v1")


def stubs(root: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (root / FOLDER).iterdir() if is_generated(path)}


def test_stubs_are_fresh(tmp_path: Path) -> None:
    # The tools of this interpreter, whatever environment it is; the stamp keeps make from installing.
    tools = Path(sys.executable).parent
    command = ["make", "--old-file=.venv/.test", "protos", f"BIN={tools}", f"OUT={tmp_path}"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    assert stubs(ROOT) == stubs(tmp_path)
