# SPDX-License-Identifier: Apache-2.0
"""What a device has for kernels: how many programs run at once, and how much on-chip memory one of them may fill.

Every kernel is a one-dimensional grid of programs that loop over work items. Does not know operations.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

# Programs that share a multiprocessor hide each other's waiting.
_PROGRAMS_PER_MULTIPROCESSOR = 8
# Of a multiprocessor's registers (256 KiB) and shared memory (228 KiB), for one program's tiles.
_TILE_BYTES = 128 << 10
_INTERPRETED_PROGRAMS = 2


@dataclass(frozen=True)
class Cores:
    num_programs: int
    tile_bytes: int

    def grid(self, num_items: int) -> tuple[int]:
        return (max(1, min(num_items, self.num_programs)),)

    def tile(self, num_values: int, num_tiles: int) -> int:
        """The power of two that holds num_values, or, where num_tiles of them in float32 would not fit on the chip, the
        largest that fits."""
        largest = self.tile_bytes // (4 * num_tiles)
        return min(power_of_two(num_values), 1 << (largest.bit_length() - 1))


def power_of_two(number: int) -> int:
    """The least that is not below number."""
    return 1 << max(0, number - 1).bit_length()


def cores_of(device: torch.device) -> Cores:
    if device.type == "cpu":
        return Cores(_INTERPRETED_PROGRAMS, _TILE_BYTES)
    count = torch.cuda.get_device_properties(device).multi_processor_count
    return Cores(count * _PROGRAMS_PER_MULTIPROCESSOR, _TILE_BYTES)
