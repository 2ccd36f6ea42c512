# SPDX-License-Identifier: Apache-2.0
"""What an operator can set, checked when made. Filled from flags and environment in __main__.py.

What depends on the machine (how many blocks fit, how many threads) is measured later by the part that uses it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kernels import BACKENDS
from protos.errors import ConfigError
from protos.server import Ports

DTYPES = ("auto", "float32", "bfloat16", "float16")
DEVICES = ("cpu",)
MAX_DEPTH = 2


@dataclass(frozen=True)
class ExecutorConfig:
    """0 stands for "measure it" in threads, num_blocks and max_context_tokens, and for the device's own in depth."""

    model: Path
    name: str = ""
    device: str = "cpu"
    dtype: str = "auto"
    kernels: str = "reference"
    ports: Ports = field(default_factory=Ports)
    threads: int = 0
    block_tokens: int = 16
    num_blocks: int = 0
    kv_memory_fraction: float = 0.5
    max_step_tokens: int = 512
    max_sequences: int = 256
    max_context_tokens: int = 0
    max_queued: int = 4096
    depth: int = 0
    drain_timeout_s: float = 30.0
    stuck_after_s: float = 120.0

    def __post_init__(self) -> None:
        _check(self.model.is_dir(), "MODEL", self.model, "must be a directory with config.json and safetensors files")
        _check(self.device in DEVICES, "DEVICE", self.device, f"must be one of {', '.join(DEVICES)}")
        _check(self.dtype in DTYPES, "DTYPE", self.dtype, f"must be one of {', '.join(DTYPES)}")
        self.ports.check("EXECUTOR")
        _check(self.kernels in BACKENDS, "KERNELS", self.kernels, f"must be one of {', '.join(BACKENDS)}")
        is_power_of_two = self.block_tokens > 0 and self.block_tokens & (self.block_tokens - 1) == 0
        _check(is_power_of_two, "BLOCK_TOKENS", self.block_tokens, "must be a power of two")
        _check(0 < self.kv_memory_fraction <= 1, "KV_MEMORY_FRACTION", self.kv_memory_fraction, "must be in (0, 1]")
        for setting, value in (("THREADS", self.threads), ("NUM_BLOCKS", self.num_blocks)):
            _check(value >= 0, setting, value, "must be 0 or more")
        for setting, value in (
            ("MAX_STEP_TOKENS", self.max_step_tokens),
            ("MAX_SEQUENCES", self.max_sequences),
            ("MAX_QUEUED", self.max_queued),
        ):
            _check(value >= 1, setting, value, "must be 1 or more")
        is_context = self.max_context_tokens == 0 or self.max_context_tokens >= 2
        _check(is_context, "MAX_CONTEXT_TOKENS", self.max_context_tokens, "must be 0 (the model's) or at least 2")
        _check(0 <= self.depth <= MAX_DEPTH, "DEPTH", self.depth, f"must be 0 to {MAX_DEPTH}")
        _check(self.stuck_after_s > 0, "STUCK_AFTER_S", self.stuck_after_s, "must be above 0")
        _check(self.drain_timeout_s >= 0, "DRAIN_TIMEOUT_S", self.drain_timeout_s, "must be 0 or more")

    @property
    def model_name(self) -> str:
        return self.name or self.model.resolve().name


def _check(is_valid: bool, setting: str, value: object, bound: str) -> None:
    if not is_valid:
        raise ConfigError(f"EXECUTOR_{setting}={value}: {bound}")
