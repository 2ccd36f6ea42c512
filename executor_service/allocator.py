# SPDX-License-Identifier: Apache-2.0
"""Tells the C library to keep freed memory rather than give it back.

A step frees and takes the same megabytes hundreds of times; by default glibc maps large ones anew each time, and the
page faults cost as much as the arithmetic. Does nothing where the C library has no mallopt.
"""

from __future__ import annotations

import ctypes

# From glibc's malloc.h. 32 MiB is the largest value that M_MMAP_THRESHOLD takes.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -2, -3, -8
KEPT_BYTES = 1 << 30


def keep_freed_memory() -> None:
    """Once, at start, before threads are made. One arena, so that what one thread frees another takes."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(M_MMAP_THRESHOLD, 32 << 20)
    mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)
    mallopt(M_TOP_PAD, 64 << 20)
    mallopt(M_ARENA_MAX, 1)
