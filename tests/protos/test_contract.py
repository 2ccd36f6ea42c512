# SPDX-License-Identifier: Apache-2.0
"""The contract breaks no caller of an earlier one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.repository import ROOT

# Each of them, not the last alone: a break may come in the middle of several commits.
NUM_COMMITS = 10


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


def commits_of_the_contract() -> list[str]:
    """The last ones that changed a .proto file, newest first; none before the first commit."""
    if subprocess.run(["git", "rev-parse", "--verify", "-q", "HEAD"], cwd=ROOT, capture_output=True).returncode:
        return []
    return git("rev-list", f"--max-count={NUM_COMMITS}", "HEAD", "--", "*.proto").decode().split()


def test_contract_breaks_no_earlier_one(tmp_path: Path) -> None:
    commits = commits_of_the_contract()
    if not commits:
        pytest.skip("no commit holds a contract yet")
    buf = Path(sys.executable).parent / "buf"
    for commit in commits:
        earlier = tmp_path / commit
        earlier.mkdir()
        archive = git("archive", commit, "buf.yaml", "protos")
        subprocess.run(["tar", "-x", "-C", str(earlier)], input=archive, check=True)
        result = subprocess.run([buf, "breaking", "--against", str(earlier)], cwd=ROOT, capture_output=True, text=True)
        assert result.returncode == 0, f"against {commit}:\n{result.stdout}{result.stderr}"
