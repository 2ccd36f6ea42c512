# SPDX-License-Identifier: Apache-2.0
"""What an operator can set, checked when made. Filled from flags and environment in __main__.py.

What depends on the machine (how many blocks fit, how many threads) is measured later by the part that uses it.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from pathlib import Path

from kernels import BACKENDS
from protos.errors import ConfigError
from protos.server import Ports

DTYPES = ("auto", "float32", "bfloat16", "float16")
MAX_DEPTH = 2
_DEVICE = re.compile(r"cpu|(npu|cuda)(:\d{1,3})?")


@dataclass(frozen=True)
class DeviceDefaults:
    """What suits a type of device. Where it runs apart from the host, two steps overlap; blocks are larger where the
    fused attention reads them whole."""

    block_tokens: int
    max_step_tokens: int
    depth: int
    kv_memory_fraction: float


DEVICES = {
    "cpu": DeviceDefaults(block_tokens=16, max_step_tokens=512, depth=1, kv_memory_fraction=0.5),
    "npu": DeviceDefaults(block_tokens=128, max_step_tokens=2048, depth=2, kv_memory_fraction=0.9),
    "cuda": DeviceDefaults(block_tokens=64, max_step_tokens=2048, depth=2, kv_memory_fraction=0.9),
}

# Attention of the NPU packs no more rows than that.
MAX_SEQUENCES = {"cpu": 65_536, "npu": 4_096, "cuda": 65_536}


@dataclass(frozen=True)
class ExecutorConfig:
    """0 stands for the device's own in the fields of DeviceDefaults, and for "measure it" in threads, num_blocks and
    max_context_tokens."""

    model: Path
    name: str = ""
    device: str = "cpu"
    dtype: str = "auto"
    kernels: str = "auto"
    ports: Ports = field(default_factory=Ports)
    threads: int = 0
    block_tokens: int = 0
    num_blocks: int = 0
    kv_memory_fraction: float = 0.0
    max_step_tokens: int = 0
    max_sequences: int = 256
    max_context_tokens: int = 0
    max_queued: int = 4096
    depth: int = 0
    graphs: bool = True
    drain_timeout_s: float = 30.0
    stuck_after_s: float = 120.0

    def __post_init__(self) -> None:
        _check(self.model.is_dir(), "MODEL", self.model, "must be a directory with config.json and safetensors files")
        _check(
            bool(_DEVICE.fullmatch(self.device)), "DEVICE", self.device, "must be cpu, npu:0 or cuda:0, of any number"
        )
        self._take_defaults(DEVICES[self.device_type])
        _check(self.dtype in DTYPES, "DTYPE", self.dtype, f"must be one of {', '.join(DTYPES)}")
        self.ports.check("EXECUTOR")
        _check(self.kernels in BACKENDS, "KERNELS", self.kernels, f"must be one of {', '.join(BACKENDS)}")
        is_power_of_two = self.block_tokens > 0 and self.block_tokens & (self.block_tokens - 1) == 0
        _check(is_power_of_two, "BLOCK_TOKENS", self.block_tokens, "must be a power of two")
        _check(0 < self.kv_memory_fraction <= 1, "KV_MEMORY_FRACTION", self.kv_memory_fraction, "must be in (0, 1]")
        for setting, value in (("THREADS", self.threads), ("NUM_BLOCKS", self.num_blocks)):
            _check(value >= 0, setting, value, "must be 0 or more")
        for setting, value in (("MAX_STEP_TOKENS", self.max_step_tokens), ("MAX_QUEUED", self.max_queued)):
            _check(value >= 1, setting, value, "must be 1 or more")
        most = MAX_SEQUENCES[self.device_type]
        _check(1 <= self.max_sequences <= most, "MAX_SEQUENCES", self.max_sequences, f"must be 1 to {most}")
        is_context = self.max_context_tokens == 0 or self.max_context_tokens >= 2
        _check(is_context, "MAX_CONTEXT_TOKENS", self.max_context_tokens, "must be 0 (the model's) or at least 2")
        _check(1 <= self.depth <= MAX_DEPTH, "DEPTH", self.depth, f"must be 0 (the device's own) to {MAX_DEPTH}")
        _check(self.stuck_after_s > 0, "STUCK_AFTER_S", self.stuck_after_s, "must be above 0")
        _check(self.drain_timeout_s >= 0, "DRAIN_TIMEOUT_S", self.drain_timeout_s, "must be 0 or more")

    def _take_defaults(self, defaults: DeviceDefaults) -> None:
        for name, value in dataclasses.asdict(defaults).items():
            if getattr(self, name) == 0:
                object.__setattr__(self, name, value)

    @property
    def device_type(self) -> str:
        return self.device.split(":")[0]

    @property
    def model_name(self) -> str:
        return self.name or self.model.resolve().name


def _check(is_valid: bool, setting: str, value: object, bound: str) -> None:
    if not is_valid:
        raise ConfigError(f"EXECUTOR_{setting}={value}: {bound}")
