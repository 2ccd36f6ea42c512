# SPDX-License-Identifier: Apache-2.0
"""Where packserve keeps what it can make again on this machine: the demo model, logs of one-off runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """PACKSERVE_HOME, else packserve/ in the user's cache. May not exist yet."""
    if home := os.environ.get("PACKSERVE_HOME"):
        return Path(home)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "packserve"
