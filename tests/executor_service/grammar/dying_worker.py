# SPDX-License-Identifier: Apache-2.0
"""A grammar worker that starts and is killed at its first constraint, as by whoever runs out of memory beside it."""

from __future__ import annotations

import os
import signal
import sys

from executor_service.grammar.frames import LENGTH_BYTES, READY, frame


def read() -> None:
    sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(LENGTH_BYTES), "little"))


read()
sys.stdout.buffer.write(frame(READY))
sys.stdout.buffer.flush()
read()
os.kill(os.getpid(), signal.SIGKILL)
