# SPDX-License-Identifier: Apache-2.0
"""The programs that the stack takes from Debian: installed where they are missing and where we may."""

from __future__ import annotations

import os
import shutil
import subprocess

from protos.errors import ConfigError

# Program and package have one name.
PROMETHEUS = "prometheus"
ALERTMANAGER = "prometheus-alertmanager"
CHROMIUM = "chromium"
INSTALL = ("apt-get", "install", "-y", "--no-install-recommends")


def ensure(*programs: str) -> None:
    """Raises ConfigError, naming the packages, where they are missing and can't be installed."""
    missing = [program for program in programs if shutil.which(program) is None]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which(INSTALL[0]) is None:
        raise ConfigError(f"missing: {', '.join(missing)}. As root: {' '.join((*INSTALL, *missing))}")
    print(f"installing {', '.join(missing)}", flush=True)
    for command in ((INSTALL[0], "update"), (*INSTALL, *missing)):
        result = subprocess.run(command, capture_output=True, text=True)  # noqa: S603
        if result.returncode:
            raise ConfigError(f"{' '.join(command)} failed: {result.stderr.strip()[-500:]}")
