# SPDX-License-Identifier: Apache-2.0
"""What a runner asks of the device, call by call. Does not know what it should ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.npu import stub

METHODS = ("forward", "sample", "sampled", "warm_up")


@dataclass(frozen=True)
class Call:
    """Of one method of the runner. log: as of the stub; num_bytes_down: of copies from host to device; largest_copy:
    in either direction; largest_malloc: of memory that the allocator did not hold."""

    name: str
    args: tuple[Any, ...]
    result: Any
    log: list[str]
    num_bytes_down: int
    largest_copy: int
    largest_malloc: int

    @property
    def waits(self) -> list[str]:
        return [entry for entry in self.log if entry.startswith(("sync", "waiting"))]


def watch(runner: Any) -> list[Call]:
    """Grows as the runner is called; calls that warm_up makes are not in it."""
    calls: list[Call] = []

    def watched(name: str, method: Any) -> Any:
        def call(*args: Any) -> Any:
            stub.reset()
            result = method(*args)
            if name == "warm_up":
                calls.clear()  # its own
            calls.append(made(name, args, result))
            return result

        return call

    for name in METHODS:
        setattr(runner, name, watched(name, getattr(runner, name)))
    return calls


def made(name: str, args: tuple[Any, ...], result: Any) -> Call:
    counted = stub.counters
    down = [counted.queued.H2D, counted.waiting.H2D]
    up = [counted.queued.D2H, counted.waiting.D2H]
    largest_copy = max(copies.largest for copies in (*down, *up))
    num_bytes_down = sum(copies.bytes for copies in down)
    return Call(name, args, result, stub.log(), num_bytes_down, largest_copy, counted.largest_malloc)
