# SPDX-License-Identifier: Apache-2.0
"""A Triton driver without a device: kernels that are launched are compiled down to machine code and not run.

Says what the machine code takes. Stands in for an H100 or H200, which limit its shared memory.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton.backends import nvidia
from triton.backends.compiler import GPUTarget

TARGET = GPUTarget("cuda", 90, 32)
MAX_SHARED_BYTES = 227 << 10
MAX_THREADS = 1024
CUOBJDUMP = Path(nvidia.__file__).parent / "bin" / "cuobjdump"
USAGE = re.compile(r"REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)", re.DOTALL)
OPERATION = re.compile(r"\b(\w+(?:\.\w+)*\.f32)\b")


@dataclass(frozen=True)
class Built:
    name: str
    num_warps: int
    num_registers: int  # of a thread
    stack_bytes: int  # where what no register holds is put
    shared_bytes: int
    operations: tuple[str, ...]  # of float32

    def __str__(self) -> str:
        return (
            f"name={self.name} warps={self.num_warps} registers={self.num_registers} stack={self.stack_bytes}"
            f" shared={self.shared_bytes} operations={','.join(self.operations)}"
        )


class CompilingDriver:
    """utils, launcher_cls and the current device are what Triton asks a driver for."""

    def __init__(self) -> None:
        self.utils = self
        self.built: list[Built] = []
        self.usages: list[tuple[int, int, int]] = []

    def get_current_target(self) -> GPUTarget:
        return TARGET

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": MAX_SHARED_BYTES}

    def launcher_cls(self, source: Any, metadata: Any) -> Any:
        return lambda *arguments: None

    def load_binary(self, name: str, cubin: bytes, shared_bytes: int, device: int) -> tuple[None, None, int, int, int]:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            command = [CUOBJDUMP, "--dump-resource-usage", file.name]
            text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        registers, stack, local = (int(number) for number in USAGE.search(text).groups())
        self.usages.append((registers, stack + local, shared_bytes))
        return None, None, registers, stack + local, MAX_THREADS

    def unload_module(self, module: None) -> None:
        pass

    def on_load(self, module: Any, function: Any, name: str, metadata_group: Any, key: str) -> None:
        """After load_binary(), of the same kernel."""
        ptx = next(Path(path) for file, path in metadata_group.items() if file.endswith(".ptx")).read_text()
        threads = re.search(r"\.reqntid (\d+)", ptx)
        operations = tuple(sorted(set(OPERATION.findall(ptx))))
        self.built.append(Built(name, int(threads[1]) // TARGET.warp_size, *self.usages[-1], operations))


def install() -> CompilingDriver:
    driver = CompilingDriver()
    triton.runtime.driver.set_active(driver)
    triton.knobs.runtime.kernel_load_end_hook.add(driver.on_load)
    return driver
