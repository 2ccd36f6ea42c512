# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser without a screen: what it found to draw, and a picture of it.

Knows the page's address and the data attributes of its body.
"""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from k8s.monitoring.local.programs import CHROMIUM
from protos.errors import Unavailable

WIDTH = 1600
# Of the page's own clock, which stands still while an answer is on its way.
BUDGET_MS = 8000
TIMEOUT_S = 90
FLAGS = ("--headless=new", "--disable-gpu", "--hide-scrollbars", "--no-first-run", "--disable-background-networking")


@dataclass(frozen=True)
class Drawn:
    """As the page says itself. empty: expressions without data that should have some, as dashboard / panel / legend."""

    num_panels: int
    height: int
    empty: tuple[str, ...]


def look(url: str) -> Drawn:
    """Raises Unavailable where the page did not come to its end."""
    dom = _chromium(url, "--dump-dom", f"--window-size={WIDTH},1000")
    found = dict(re.findall(r'data-(panels|height|empty)="([^"]*)"', dom))
    if len(found) < 3:
        raise Unavailable(f"the page drew nothing: {dom[-500:]}")
    empty = json.loads(html.unescape(found["empty"]))
    return Drawn(int(found["panels"]), int(found["height"]), tuple(empty))


def take(url: str, file: Path) -> Drawn:
    """The whole page, however long it is."""
    drawn = look(url)
    _chromium(url, f"--screenshot={file.resolve()}", f"--window-size={WIDTH},{drawn.height}")
    return drawn


def _chromium(url: str, *arguments: str) -> str:
    """What it printed. As root it can't build its sandbox; it sees our own page alone."""
    sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = (CHROMIUM, *FLAGS, *sandbox, f"--user-data-dir={profile}", f"--virtual-time-budget={BUDGET_MS}")
        result = subprocess.run(  # noqa: S603
            (*command, *arguments, f"{url}?once"), capture_output=True, text=True, timeout=TIMEOUT_S
        )
    if result.returncode:
        raise Unavailable(f"{CHROMIUM} ended with status {result.returncode}: {result.stderr[-500:]}")
    return result.stdout
