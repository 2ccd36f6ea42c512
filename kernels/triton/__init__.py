# SPDX-License-Identifier: Apache-2.0
"""The operations for NVIDIA GPUs: Triton kernels where the vendor's libraries have none, torch elsewhere.

On a CPU they run in Triton's interpreter, for tests. Nothing here asks for a driver before it is loaded.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import TYPE_CHECKING, Any

import torch

from protos.errors import ConfigError

if TYPE_CHECKING:
    from kernels import Shape


def load(device: torch.device, shape: Shape) -> Any:
    if importlib.util.find_spec("triton") is None:
        raise ConfigError('kernels "triton" need the package triton, which is not installed')
    is_interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if device.type != ("cpu" if is_interpreted else "cuda"):
        raise ConfigError(f'kernels "triton" run on cuda, or on cpu with TRITON_INTERPRET=1, not on {device.type}')
    if shape.head_dim % 2:
        raise ConfigError(f'kernels "triton" turn pairs of dimensions: a head has {shape.head_dim}, not an even number')
    # Only here is the package known to be there.
    return importlib.import_module("kernels.triton.backend").TritonBackend(device, shape)
