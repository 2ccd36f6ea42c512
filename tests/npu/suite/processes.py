# SPDX-License-Identifier: Apache-2.0
"""Processes with a device of their own, for what ends a process or needs other settings of the stub."""

from __future__ import annotations

import os
import subprocess
import sys


def run(code: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """code: what follows where the device is current."""
    script = f"import torch, torch_npu\ntorch.npu.set_device(0)\n{code}"
    command = [sys.executable, "-c", script]
    return subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, timeout=120, check=False)
